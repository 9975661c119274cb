"""First answers to the exercises of distributed_data_parallel get their verdicts."""

from .judging import first_runs_of

MODULE = "distributed_data_parallel"
test_an_answer_written_from_the_starter_gets_its_verdict = first_runs_of(MODULE)
