"""The tensors that the ranks hold: numbers that show which ranks are in a sum.

Element i has a weight from 5 to 9, and rank r holds weight × 100^r.  With three ranks an element of
weight 6 is 6, 600 and 60000, and the right sum is 60606.  If 120606 came, rank 2 was added twice.
No weight is a multiple of another one: what belongs to another element is seen, too.  All sums
are whole numbers, exact in every type and in every order of adding.
"""

import torch
import torch.distributed as dist

from multigpu.checking.declaration import case
from multigpu.checking.verdicts import numbered
from multigpu.ranks import rank_device
from multigpu.ranks.errors import counted

BASE = 100
BITS = {torch.int64: 60, torch.float64: 50}  # as far as the large numbers reach


def each_tensor(world):
    """A case for each kind of tensor, those that are easy to read first."""
    dtypes = (torch.int64, torch.float32, torch.float64, torch.float64)
    for turn, dtype in enumerate(dtypes):
        yield a_case(world, (2 * world,), dtype, turn=turn)
    yield a_case(world, (2 * world + 1,))
    yield a_case(world, (3, 5), torch.float32)
    yield a_case(world, (max(world - 1, 1),), torch.float64)
    yield a_case(world, (1,))
    yield a_case(world, (), torch.float32)
    yield a_case(world, (0,), torch.float64)
    yield a_case(world, (2, 0, 3))
    yield a_case(world, (7,), large=True)
    yield a_case(world, (2, 4), torch.float64, large=True)
    yield a_case(world, (4099,))  # more than anybody's buffer of a fixed size
    yield a_case(world, (2 * world,))


def each_world():
    """The cases of most exercises, for three ranks first."""
    for world in (3, 2, 4, 1):
        yield from each_tensor(world)


def a_case(world, shape, dtype=torch.int64, *, large=False, turn=0):
    """One call.  ``large`` numbers need all bits of their type.

    Another ``turn`` gives other numbers, so that a message of the call before is seen.
    """
    size = torch.Size(shape).numel()
    title = f"{counted(world, 'rank')}, shape {shape}, {str(dtype)[6:]}"
    values = {"shape": shape, "dtype": dtype, "large": large, "turn": turn}
    return case(title, world=world, size=size, **values)


def held(case, rank):
    """What one rank holds."""
    return (units(case) * BASE**rank).reshape(case.shape).to(case.dtype)


def units(case):
    """What rank 0 holds, flat; neighbors are different."""
    weights = 5 + (2 * torch.arange(case.size) + case.turn) % 5
    # an odd number makes them as large as the type can hold exactly
    scale = 2 ** BITS[case.dtype] // (10 * BASE ** (case.world - 1)) | 1 if case.large else 1
    return weights * scale


def total(case):
    """The right sum."""
    return sum(held(case, rank) for rank in range(case.world))


def own_tensor(case, rank):
    """What the function gets on this rank."""
    place = rank_device() if dist.get_backend() == "nccl" else "cpu"  # gloo sends from the CPU
    return held(case, rank).to(place)


def arguments(case, rank):
    return (own_tensor(case, rank),)


def whose(case, tensor):
    """In words: the rank whose numbers these are, None if no rank has them."""
    owners = [r for r in range(case.world) if tensor.equal(held(case, r))]
    return f"these are the numbers of rank {owners[0]}" if owners else None


def made_of(case, tensor):
    """In words: how often each rank's numbers are in the worst element of a sum, or None."""
    apart = (tensor.double() - total(case).double()).abs().flatten()
    index = int(apart.nan_to_num(torch.inf).argmax())
    value, unit = tensor.flatten()[index].item(), int(units(case)[index])
    if value % unit or not 0 <= value // unit < BASE**case.world:
        return None
    parts = [int(value // unit // BASE**rank % BASE) for rank in range(case.world)]
    there = [f"{n} × rank {r}" if n > 1 else f"rank {r}" for r, n in enumerate(parts) if n]
    missing = [rank for rank, n in enumerate(parts) if not n]
    if max(parts) > 9 or not there:
        return None
    words = f"it is made of {' + '.join(there)}"
    return f"{words}, and nothing of {numbered('rank', missing)}" if missing else words


# --- how they travel ----------------------------------------------------------------------------


def travels_in_messages(exercise, ops=("send", "recv"), ranks=lambda case: range(case.world)):
    """Every rank, or each of ``ranks``, did what it cannot do without: no other road was taken."""

    @exercise.holds(
        "no_message",
        expects="the numbers travel in messages between ranks",
        usually="they took another road, such as a file, a store or numbers known in advance.",
        fix="Only messages between ranks count.",
    )
    def _(run, case):
        if case.world == 1 or not case.size:
            return None
        for rank in ranks(case):
            done = {call.op for call in run.calls(case, rank)}
            for op in ops:
                if op not in done:
                    verb = "sent" if op == "send" else "received"
                    return f"rank {rank} {verb} no message"
        return None
