"""First answers to the exercises of sharding get the verdicts that they must get."""

from .judging import first_runs_of

test_an_answer_written_from_the_starter_gets_its_verdict = first_runs_of("sharding")
