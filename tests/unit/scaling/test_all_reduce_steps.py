"""The steps of an all-reduce: what traveled, what every rank holds, by any plan."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from multigpu.scaling.all_reduce_steps import all_reduce_steps, steps_of_all_reduce

ROOT = Path(__file__).parents[3]
spec = importlib.util.spec_from_file_location("by_hand", ROOT / "solutions" / "collectives.py")
assert spec is not None
assert spec.loader is not None
by_hand = importlib.util.module_from_spec(spec)
spec.loader.exec_module(by_hand)


def numbers_in(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\b\d+", text)]


def forgets_rank_two(tensor: torch.Tensor) -> None:
    if dist.get_rank() == 2:
        dist.send(torch.zeros_like(tensor), 0)
    elif dist.get_rank() == 1:
        dist.send(tensor, 0)
    else:
        arrived = torch.empty_like(tensor)
        for rank in (1, 2):
            dist.recv(arrived, rank)
            tensor += arrived


def ready_made(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)


@pytest.mark.parametrize("world", [2, 4])
def test_a_ring_takes_two_rounds_in_which_every_rank_sends_to_its_neighbor(world: int) -> None:
    steps = steps_of_all_reduce(by_hand.ring_all_reduce, world)
    rounds = [f"add {i}" for i in range(1, world)] + [f"copy {i}" for i in range(1, world)]
    assert [step.label for step in steps] == ["start", *rounds]
    for step in steps[1:]:
        assert [(m.source, m.target) for m in step.messages] == [
            (rank, (rank + 1) % world) for rank in range(world)
        ]
        assert {m.bytes for m in step.messages} == {12 // world * 8}
    everyone = frozenset(range(world))
    assert steps[0].holds == [[frozenset([rank])] * world for rank in range(world)]
    assert steps[-1].holds == [[everyone] * world] * world
    complete = [held.count(everyone) for held in steps[world - 1].holds]
    assert complete == [1] * world, "after reduce-scatter one complete chunk each"
    assert numbers_in(steps[world - 1].says)[-2:] == [12, 12 * world]


def test_another_plan_is_shown_in_the_order_in_which_it_can_happen() -> None:
    steps = steps_of_all_reduce(by_hand.all_reduce, 3)
    assert [(m.source, m.target) for m in steps[1].messages] == [(1, 0), (2, 0)]
    later = [(m.source, m.target) for step in steps[2:] for m in step.messages]
    assert later == [(0, 1), (0, 2)]
    assert all(m.chunks[0] == frozenset(range(3)) for step in steps[2:] for m in step.messages)


def test_the_picture_is_a_stepper_with_one_slide_per_step() -> None:
    made = all_reduce_steps(by_hand.ring_all_reduce, 2)
    assert "ring_all_reduce" in made.title
    assert numbers_in(made.title) == [2]
    assert [slide.label for slide in made.slides] == ["start", "add 1", "copy 1"]
    assert numbers_in(made.slides[-1].says)[-2:] == [24, 24]  # all numbers are complete sums


def test_what_does_not_add_up_is_not_shown() -> None:
    with pytest.raises(ValueError, match=r"rank 0\b.*\bsum\b.*\b0$"):
        all_reduce_steps(forgets_rank_two, 3)


def test_what_sends_nothing_by_itself_is_not_shown() -> None:
    with pytest.raises(ValueError, match="isend"):
        all_reduce_steps(ready_made, 2)


@pytest.mark.parametrize("world", [1, 5])
def test_two_to_four_ranks_can_be_shown(world: int) -> None:
    with pytest.raises(ValueError, match=f"not {world}"):
        all_reduce_steps(by_hand.ring_all_reduce, world)
