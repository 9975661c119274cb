"""Checks of ``hangs.reordered_reductions``: sums by name, whatever order each rank has them in."""

import pytest
import torch
import torch.distributed as dist

from multigpu.checking import exercise
from multigpu.checking.verdicts import Refused
from multigpu.ranks import rank_device

from .explain_reordered_reductions import STUCK, examine
from .stuck import in_own_words

SHAPES = {"Loss": (4,), "rows": (), "confusion": (3, 3), "a.weight": (2, 4), "loss": (1,)}
ALIKE = dict.fromkeys(("recall", "loss", "accuracy", "f1"), (3,))
BY_SIZE = {"layer10": (2, 3), "layer9": (3, 2), "layer1": (6,)}  # one size, three shapes


def drive(submission, cases):
    """Reduce each dict, and tell what the dict and the tensors that were in it hold then."""
    names, world, results = names_without_order(), dist.get_world_size(), []
    for orders in [*cases, orders_of(pair_of(names), world)]:
        own = orders[dist.get_rank()]
        tensors = {name: tensor.to(rank_device()) for name, tensor in own.items()}
        before = dict(tensors)
        submission.reordered_reductions(tensors)
        results.append(
            {
                "dict": {name: tensor.clone() for name, tensor in tensors.items()},
                "tensors": {name: tensor.clone() for name, tensor in before.items()},
            }
        )
    return {"cases": results, "names": names}


def pair_of(names):
    """Shapes for two names."""
    return dict(zip(names, [(2,), (5,)], strict=True))


def names_without_order():
    """Two names whose order in a set is that in which they were put there.

    All ranks here have the same string hashes, as ranks under torchrun do not: so most sets would
    have the same order on all of them, and code that goes through a set would seem right.
    """
    names = [f"name{number}" for number in range(50)]
    pairs = ((one, other) for one in names for other in names)
    return next([a, b] for a, b in pairs if list({a, b}) != list({b, a}))


def orders_of(shapes, world, dtype=torch.float64, turned=True):
    """A dict for each rank: the same names, in another order on each when ``turned``."""
    generator = torch.Generator().manual_seed(world)
    orders = []
    for rank in range(world):
        names = list(shapes)
        if turned and names:
            places = rank % len(names)
            names = names[places:] + names[:places]
        values = {
            name: torch.randn(shape, generator=generator, dtype=torch.float64).mul(50).to(dtype)
            for name, shape in shapes.items()
        }
        orders.append({name: values[name] for name in names})
    return orders


@exercise("hangs.reordered_reductions")
@pytest.mark.parametrize("world", [3, 2, 4, 1])
def test_sums_by_name(learner, world):
    cases = [
        orders_of(SHAPES, world),
        orders_of(ALIKE, world),
        orders_of(BY_SIZE, world, torch.float32),
        orders_of(SHAPES, world, torch.int64),
        orders_of(SHAPES, world, turned=False),
        orders_of({}, world),
    ]
    try:
        answer = learner.run_ranks(drive, cases, world=world)
    except Refused as refused:
        message_id = "reordered_reductions.other_order"
        raise in_own_words(refused, message_id, kind="mismatch", **STUCK) from None
    cases.append(orders_of(pair_of(answer.results[0]["names"]), world))
    for orders, *results in zip(cases, *(r["cases"] for r in answer.results), strict=True):
        examine(orders, results, answer.wheres)
