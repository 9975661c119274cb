"""``hangs.reordered_reductions``: sums by name, whatever order each rank has them in."""

import torch
import torch.distributed as dist

from multigpu.checking.declaration import case, exercise
from multigpu.ranks import rank_device
from multigpu.ranks.errors import listed

reordered_reductions = exercise(
    "hangs.reordered_reductions",
    expects="under each name the sum over all ranks, in the tensor that was given",
)
SHAPES = {"Loss": (4,), "rows": (), "confusion": (3, 3), "a.weight": (2, 4), "loss": (1,)}
ALIKE = dict.fromkeys(("recall", "loss", "accuracy", "f1"), (3,))
BY_SIZE = {"layer10": (2, 3), "layer9": (3, 2), "layer1": (6,)}  # one size, three shapes
TWO = {"one": (2,), "another": (5,)}


@reordered_reductions.cases
def cases():
    for world in (3, 2, 4, 1):
        yield a_case(world, TWO, without_order=True)
        yield a_case(world, SHAPES)
        yield a_case(world, ALIKE)
        yield a_case(world, BY_SIZE, torch.float32)
        yield a_case(world, SHAPES, torch.int64)
        yield a_case(world, SHAPES, turned=False)
        yield a_case(world, {})


def a_case(world, shapes, dtype=torch.float64, turned=True, without_order=False):
    """A dict for each rank: the same names, in another order on each when ``turned``."""
    generator = torch.Generator().manual_seed(world)
    orders = []
    for rank in range(world):
        places = rank % len(shapes) if turned and shapes else 0
        names = [*shapes][places:] + [*shapes][:places]
        values = {
            name: torch.randn(shape, generator=generator, dtype=torch.float64).mul(50).to(dtype)
            for name, shape in shapes.items()
        }
        orders.append({name: values[name] for name in names})
    keys = [f"rank {rank} has {listed(own, most=4)}" for rank, own in enumerate(orders)]
    title = f"{'; '.join(keys)}: {str(dtype)[6:]}"
    return case(title, world=world, of=orders, without_order=without_order)


@reordered_reductions.drive
def drive(submission, case, rank):
    """What the tensors hold that were given, and what the dict holds now."""
    own = case.of[rank]
    names = dict(zip(TWO, names_without_order())) if case.without_order else {n: n for n in own}
    tensors = {names[name]: tensor.to(rank_device(), copy=True) for name, tensor in own.items()}
    given = {name: tensors[names[name]] for name in own}
    submission.reordered_reductions(tensors)
    now = {name: tensors.get(names[name]) for name in own}
    return {
        **{name: tensor.clone() for name, tensor in given.items()},
        "the dict": {n: None if tensor is None else tensor.clone() for n, tensor in now.items()},
        "the number of names": len(tensors),
    }


def names_without_order():
    """Two names whose order in a set is that in which they were put there.

    All ranks here have the same string hashes, as ranks under torchrun do not: so most sets would
    have the same order on all of them, and code that goes through a set would seem right.
    """
    names = [f"name{number}" for number in range(50)]
    pairs = ((one, other) for one in names for other in names)
    return next([a, b] for a, b in pairs if list({a, b}) != list({b, a}))


@reordered_reductions.expected
def expected(case):
    sums = {name: sum(own[name] for own in case.of) for name in case.of[0]}
    return [{**sums, "the dict": sums, "the number of names": len(sums)}] * case.world


@reordered_reductions.right
def rank_zeros_order(tensors):
    names = [list(tensors)]
    dist.broadcast_object_list(names, src=0)
    for name in names[0]:
        dist.all_reduce(tensors[name])


@reordered_reductions.right
def one_flat_tensor(tensors):
    if tensors:
        reduce_as_one([tensors[name] for name in sorted(tensors)])


def reduce_as_one(tensors):
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    pieces = flat.split([tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces):
        tensor.copy_(piece.reshape(tensor.shape))


@reordered_reductions.mistake(
    "other_order",
    "the ranks do not reduce the names in one order, but in that of a dict or a set.",
    fix="A rank only knows how many calls it has made, not for which name: sort the names.",
    status="mismatch",
    roughly=True,
)
def as_it_was_handed_out(tensors):
    for tensor in tensors.values():
        dist.all_reduce(tensor)


@reordered_reductions.mistake(
    "added_by_place",
    "each rank takes its tensors in its own order, and what is at the same place was added up.",
    fix="Sort the names.",
)
def one_flat_tensor_in_its_own_order(tensors):
    if tensors:
        reduce_as_one([*tensors.values()])


@reordered_reductions.mistake(
    "not_in_place",
    "the sum is in a new tensor in the dict, and code that holds the old one does not see it.",
    fix="Reduce the tensor itself, or copy_ the sum into it.",
)
def new_tensors_in_the_dict(tensors):
    for name in sorted(tensors):
        total = tensors[name].clone()
        dist.all_reduce(total)
        tensors[name] = total


@reordered_reductions.mistake(
    "nothing_added",
    "the tensors are as before: the sum was made in a copy, or nothing was reduced.",
    fix="Reduce the tensor itself, or copy_ the sum into it.",
)
def in_a_copy(tensors):
    for name in sorted(tensors):
        dist.all_reduce(tensors[name].clone())
