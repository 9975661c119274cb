"""Answers to the exercises of model_server get the verdicts that they must get."""

import re

import pytest

from .judging import answers_of, enough_answers_of, mutants_of, solution_of

test_an_answer_gets_its_verdict = answers_of("model_server")
test_there_are_enough_answers = enough_answers_of("model_server")


@pytest.mark.parametrize(
    ("answer", "checked", "words"),
    [
        ("sums", "worker_step", "the mistake is in server_step, which worker_step works with: the"),
        ("receives_into_a_new_tensor", "server_step", "the mistake is in worker_step, which"),
        ("divides_too", "worker_step", "the mistake is in server_step or in worker_step: both"),
        ("does_not_know_none", "server_step", "in worker_step, which server_step works with, in"),
        ("sums", "server_step", "usually: the sum was never divided"),
    ],
)
def test_a_mistake_of_the_other_side_is_called_so(verdict_on, answer, checked, words):
    (mutant,) = [m for m in mutants_of("model_server") if m.name == answer]
    source = mutant.module(solution_of("model_server"))
    verdict = verdict_on(f"model_server.{checked}", source)
    assert words in verdict.message
    if "." in verdict.message_id and checked not in verdict.message_id:
        function = verdict.message_id.partition(".")[0]
        line = int(re.search(r"where: model_server\.py:(\d+)$", verdict.message)[1])
        assert source.splitlines()[line - 1].startswith(f"def {function}(")


def test_frozen_weights_that_moved_are_told_in_one_sentence(verdict_on):
    moved = "gives_frozen_ones_a_gradient_of_zeros"
    (mutant,) = [m for m in mutants_of("model_server") if m.name == moved]
    verdict = verdict_on(mutant.exercise, mutant.module(solution_of("model_server")))
    assert re.search(r"is frozen, but at \[\d, \d\] is \S+ and not \S+$", verdict.message, re.M)
