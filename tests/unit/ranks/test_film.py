"""The film of an all-reduce: what travelled, what every rank holds, by any plan."""

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from said import numbers_in

from multigpu.ranks.film import Frame, Message, _in_steps, film, frames_of, labels_of

ROOT = Path(__file__).parents[3]
spec = importlib.util.spec_from_file_location("by_hand", ROOT / "solutions" / "collectives.py")
assert spec is not None
assert spec.loader is not None
by_hand = importlib.util.module_from_spec(spec)
spec.loader.exec_module(by_hand)
EVERYONE = frozenset(range(3))


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


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_ring_takes_two_rounds_in_which_every_rank_sends_to_its_neighbour(world: int) -> None:
    frames = frames_of(by_hand.ring_all_reduce, world)
    rounds = [f"add {i}" for i in range(1, world)] + [f"copy {i}" for i in range(1, world)]
    assert labels_of(frames) == ["start", *rounds]
    for frame in frames[1:]:
        assert [(m.source, m.target) for m in frame.messages] == [
            (rank, (rank + 1) % world) for rank in range(world)
        ]
        assert {m.bytes for m in frame.messages} == {12 // world * 8}
    assert frames[0].holds == tuple((frozenset([rank]),) * 12 for rank in range(world))
    assert frames[-1].holds == ((frozenset(range(world)),) * 12,) * world
    complete = [held.count(frozenset(range(world))) for held in frames[world - 1].holds]
    assert complete == [12 // world] * world, "after reduce-scatter one complete part each"


def test_another_plan_is_filmed_in_the_order_in_which_it_can_happen() -> None:
    frames = frames_of(by_hand.all_reduce, 3)
    assert [(m.source, m.target) for m in frames[1].messages] == [(1, 0), (2, 0)]
    later = [(m.source, m.target) for frame in frames[2:] for m in frame.messages]
    assert later == [(0, 1), (0, 2)]
    assert all(m.sums[0] == EVERYONE for frame in frames[2:] for m in frame.messages)


def test_a_film_is_a_stepper_with_one_slide_per_step() -> None:
    made = film(by_hand.ring_all_reduce, 2)
    assert "ring_all_reduce" in made.title
    assert numbers_in(made.title) == [2]
    assert [slide.label for slide in made.slides] == ["start", "add 1", "copy 1"]
    assert numbers_in(made.slides[-1].says)[-2:] == [24, 24]  # all numbers are complete sums


def test_what_does_not_add_up_is_not_filmed() -> None:
    with pytest.raises(ValueError, match=r"rank 0\b.*\bsum\b.*\b0$"):
        film(forgets_rank_two, 3)


def test_what_sends_nothing_by_itself_is_not_filmed() -> None:
    with pytest.raises(ValueError, match="isend"):
        film(ready_made, 2)


@pytest.mark.parametrize("world", [1, 5])
def test_a_film_has_two_to_four_ranks(world: int) -> None:
    with pytest.raises(ValueError, match=f"not {world}"):
        film(by_hand.ring_all_reduce, world)


def test_a_plan_that_keeps_parts_aside_still_comes_to_an_end() -> None:
    """Rank 0 sends on what rank 1 sent it, without adding its own: not what it seems to hold."""
    first, second, both = frozenset([0]), frozenset([1]), frozenset([0, 1])
    queues = [
        [Message(0, 1, 8, {0: second}), Message(0, 1, 8, {0: first})],
        [Message(1, 0, 8, {0: second})],
    ]
    frames = _in_steps(queues, 2)
    assert isinstance(frames[0], Frame)
    assert sum(len(frame.messages) for frame in frames) == 3
    assert frames[-1].holds[0][0] == both
