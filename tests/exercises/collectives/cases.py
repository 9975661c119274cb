"""The tensors that the ranks hold in a check: numbers that show which ranks are in a sum.

Element i has a weight from 5 to 9, and rank r holds weight × 100^r.  With three ranks an element of
weight 6 is 6, 600 and 60000, and the right sum is 60606.  If 120606 came, rank 2 was added twice.
No weight is a multiple of another one: what belongs to another element is seen, too.  All sums
are whole numbers, exact in every type and in every order of adding.
"""

from dataclasses import dataclass

import torch

BASE = 100
MOST = 9  # times that a rank's number may be in a sum and still be recognised
BITS = {torch.int64: 60, torch.float64: 50}  # as far as the large numbers reach


@dataclass(frozen=True)
class Case:
    """One call.  ``large`` numbers need all bits of their type; ``src`` is for a broadcast.

    Another ``turn`` gives other numbers, so that a message of the call before is seen.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.int64
    large: bool = False
    src: int = 0
    turn: int = 0

    @property
    def size(self):
        """The number of elements."""
        return torch.Size(self.shape).numel()

    def __str__(self):
        return f"a tensor of shape {self.shape} and dtype {str(self.dtype)[6:]}"


def numbers(case, rank, world):
    """What ``rank`` of ``world`` ranks holds."""
    held = weights(case) * BASE**rank * scale(case, world)
    return held.reshape(case.shape).to(case.dtype)


def weights(case):
    """One for each element; neighbours have different ones."""
    return 5 + (2 * torch.arange(case.size) + case.turn) % 5


def scale(case, world):
    """An odd number that makes the numbers as large as the type can hold exactly."""
    return 2 ** BITS[case.dtype] // (10 * BASE ** (world - 1)) | 1 if case.large else 1


def total(case, world):
    """The right sum."""
    return sum(numbers(case, rank, world) for rank in range(world))


def shares(tensor, case, world):
    """Per element, how often each rank's own number is in it; None where it is no such sum."""
    units = (weights(case) * scale(case, world)).tolist()
    return [
        _shares(value, unit, world)
        for value, unit in zip(tensor.flatten().tolist(), units, strict=True)
    ]


def _shares(value, unit, world):
    if value != value or value in (float("inf"), -float("inf")) or value != int(value):
        return None
    quotient, rest = divmod(int(value), unit)
    if rest or not 0 <= quotient < BASE**world:
        return None
    counts = tuple(quotient // BASE**rank % BASE for rank in range(world))
    return counts if max(counts) <= MOST else None


def plain(world):
    """A size that divides by the number of ranks, in each dtype; the numbers are easy to read."""
    dtypes = (torch.int64, torch.float32, torch.float64, torch.float64)
    return [Case((2 * world,), dtype, turn=turn) for turn, dtype in enumerate(dtypes)]


def odd(world):
    """Sizes that do not divide, few or many elements, any shape, nothing at all, all bits."""
    return [
        Case((2 * world + 1,)),
        Case((3, 5), torch.float32),
        Case((max(world - 1, 1),), torch.float64),
        Case((1,)),
        Case((), torch.float32),
        Case((0,), torch.float64),
        Case((2, 0, 3)),
        Case((7,), large=True),
        Case((2, 4), torch.float64, large=True),
        Case((4099,)),  # more than anybody's buffer of a fixed size
        Case((2 * world,)),
    ]
