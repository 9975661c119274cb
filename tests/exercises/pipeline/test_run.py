"""Checks of ``pipeline.run``: it trains as the uncut model does, in the order of its schedule."""

import pytest

from multigpu.checking import exercise
from multigpu.checking.verdicts import Refused

from .driving import drive
from .explain_gradients import examine_gradients, examine_returned
from .explain_run import examine_forwards, examine_kept, examine_messages, examine_order
from .given import all_forwards_first, in_turns
from .models import Case
from .observed import sides_of
from .stuck import in_own_words
from .uncut import train


def check(learner, world, cases):
    try:
        answer = learner.run_ranks(drive, cases, world=world)
    except Refused as refused:
        raise in_own_words(refused) from None
    for number, case in enumerate(cases):
        for sides in sides_of(answer, number, case, train(case)):
            examine(sides)


def examine(sides):
    """Raise Wrong at the first rank that is not as it should be."""
    for examine_one in (examine_messages, examine_forwards, examine_order):
        for side in sides:
            examine_one(side)
    for side in reversed(sides):  # what is wrong on the last stage goes to all before it
        examine_gradients(side)
    for examine_one in (examine_returned, examine_kept):
        for side in sides:
            examine_one(side)


@exercise("pipeline.run")
def test_one_step(learner):
    """Alone: who gets stuck, gets stuck here, and the other side has returned."""
    check(learner, 2, [Case("vectors", (4, 4, 4), all_forwards_first(2, 3))])


@exercise("pipeline.run")
@pytest.mark.parametrize("world", [3, 4, 1])
def test_all_forwards_first(learner, world):
    """The gradients and the loss of the whole batch, step after step."""
    check(
        learner,
        world,
        [
            Case("vectors", (4, 4, 4), all_forwards_first(world, 3), steps=3),
        ],
    )


@exercise("pipeline.run")
@pytest.mark.parametrize("world", [2, 3, 4, 1])
def test_forwards_and_backwards_in_turn(learner, world):
    """More micro-batches than stages, as many, fewer, and one.  Then other orders."""
    check(
        learner,
        world,
        [
            Case("vectors", (2,) * 6, in_turns(world, 6), steps=2),
            Case("vectors", (2,) * world, in_turns(world, world)),
            Case("vectors", (2, 2), in_turns(world, 2)),
            Case("vectors", (3,), in_turns(world, 1)),
            Case("vectors", (2,) * 5, in_turns(world, 5, order=(3, 0, 4, 1, 2))),
            Case("vectors", (3, 3, 3, 3), all_forwards_first(world, 4, reverse=True)),
        ],
    )


@exercise("pipeline.run")
@pytest.mark.parametrize("world", [3, 1])
def test_microbatches_of_different_sizes(learner, world):
    """The last ones add to gradients that are there already."""
    check(
        learner,
        world,
        [
            Case("vectors", (4, 1, 3, 2), all_forwards_first(world, 4), steps=2),
            Case("vectors", (1, 5, 2, 2, 3), in_turns(world, 5)),
            Case("vectors", (2, 1), in_turns(world, 2), before=1 / 128),
        ],
    )


@exercise("pipeline.run")
def test_activations_of_any_shape(learner):
    """Images, and sequences of tokens."""
    check(
        learner,
        4,
        [
            Case("images", (2, 3, 1), in_turns(4, 3), steps=2),
            Case("sequences", (2, 1, 3, 2), in_turns(4, 4), steps=2),
            Case("images", (1, 2), all_forwards_first(4, 2)),
        ],
    )
