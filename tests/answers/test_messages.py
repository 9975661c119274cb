"""What a message says beyond its id: which side of a pair is meant, and where to look."""

import re

import pytest

from .stored import COURSE, answer_to


@pytest.fixture
def verdict_on_stored(verdict_on):
    """``verdict_on_stored("module.exercise", answer)``: what a stored answer gets.

    With ``checked`` another exercise of the module is checked with it.
    """
    return lambda exercise, answer, *, checked=None: verdict_on(
        checked or exercise, answer_to(exercise, answer).module
    )


@pytest.mark.parametrize(
    ("function", "status"),
    [
        ("rank_zero_metric", "hang"),
        ("uneven_batches", "hang"),
        ("reordered_reductions", "wrong"),
        ("early_stop", "hang"),
    ],
)
def test_the_starter_of_a_broken_program_is_refused_with_rank_and_line(
    function, status, verdict_on
):
    verdict = verdict_on(f"hangs.{function}", COURSE.broken("hangs").read_text(encoding="utf-8"))
    assert verdict.status == status
    assert re.search(r"ranks? \d.*hangs\.py:\d+", verdict.message)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "answer", "checked", "words"),
    [
        ("server_step", "sums", "worker_step", "in server_step, which"),
        ("worker_step", "receives_into_a_new_tensor", "server_step", "in worker_step, which"),
        ("worker_step", "divides_too", "worker_step", "Only one side divides"),
        ("worker_step", "does_not_know_none", "server_step", "in worker_step, which"),
        ("server_step", "sums", "server_step", "the sum of the workers' gradients"),
    ],
)
def test_a_mistake_of_the_other_side_is_called_so(verdict_on_stored, side, answer, checked, words):
    verdict = verdict_on_stored(f"model_server.{side}", answer, checked=f"model_server.{checked}")
    assert words in verdict.message
    if "." in verdict.message_id and checked not in verdict.message_id:
        function = verdict.message_id.partition(".")[0]
        places = rf"{function} in model_server\.py|model_server\.py:\d+ in {function}: .+"
        assert re.search(f"where: ({places})$", verdict.message)


@pytest.mark.slow
def test_frozen_weights_that_moved_are_told_in_one_sentence(verdict_on_stored):
    answer = "gives_frozen_ones_a_gradient_of_zeros"
    verdict = verdict_on_stored("model_server.server_step", answer)
    assert re.search(r"frozen.* at \[\d, \d\] is \S+ and not \S+$", verdict.message, re.M)
