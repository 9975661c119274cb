"""How the judge compares tensors, and how it recognises a known wrong value."""

from collections.abc import Mapping
from fractions import Fraction

import torch
from torch import Tensor

# Other types must be equal. In float64, too, a factor may be a float32 one: in torch a quotient of
# int64 tensors is.
RELATIVE = {torch.float64: 1e-6, torch.float32: 1e-5}
PLAIN_SUM = 1e-9  # of float64 numbers that nothing multiplies; copies, too
LARGEST = 64  # a factor of n/m is looked for up to this n and m


def same(came: Tensor, expected: Tensor, *, size: float = 0.0, near: float = 1.0) -> bool:
    """Equal in shape, type and numbers, up to rounding and the order in which a GPU adds them up.

    ``size`` is that of the numbers they come from, where these may cancel.  ``near`` allows less
    than ``RELATIVE`` does, in float64.
    """
    if came.shape != expected.shape or came.dtype != expected.dtype:
        return False
    tolerance = RELATIVE.get(expected.dtype)
    if tolerance is None:
        return torch.equal(came, expected)
    if expected.dtype is torch.float64:
        tolerance = min(tolerance, near)
    size = max(size, float(expected.abs().max()) if expected.numel() else 0.0, 1e-3)
    return torch.allclose(came, expected, rtol=tolerance, atol=tolerance * size)


def of_a_mean(parts: int) -> float:
    """How exactly a mean of float64 numbers over so many parts is asked for.

    A share 1/n in float32 is right, too, and as exact as can be where n is a power of two.
    """
    return PLAIN_SUM if parts & (parts - 1) == 0 else 1.0


def all_same(came: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    """The same names, and the same tensor under every name."""
    return came.keys() == expected.keys() and all(same(came[name], expected[name]) for name in came)


def factor_between(came: Tensor, expected: Tensor) -> Fraction | None:
    """The simple fraction (2, 1/3, 3/4) by which ``came`` is larger everywhere, else None.

    None too when they are equal, or when all is zero.
    """
    if came.shape != expected.shape or not expected.is_floating_point():
        return None
    square = float((expected * expected).sum())
    if square == 0 or not torch.isfinite(came).all():
        return None
    ratio = float((came * expected).sum()) / square
    factor = Fraction(ratio).limit_denominator(LARGEST)
    if factor <= 0 or factor == 1 or factor > LARGEST:
        return None
    return factor if same(came, expected * float(factor)) else None


def recognise(came: Tensor, known: Mapping[str, Tensor]) -> str | None:
    """The name of the first known value that ``came`` equals."""
    return next((name for name, value in known.items() if same(came, value)), None)


def largest_difference(came: Tensor, expected: Tensor) -> str:
    """Where two tensors are furthest apart, to follow a name: "at [1, 0] is 3 and not 1"."""
    if came.shape != expected.shape:
        return f"has the shape {tuple(came.shape)} and not {tuple(expected.shape)}"
    if came.dtype != expected.dtype:
        return f"is of type {came.dtype} and not {expected.dtype}"
    apart = (came.double() - expected.double()).abs().nan_to_num(torch.inf)
    index = tuple(int(i) for i in torch.unravel_index(apart.argmax(), came.shape))
    place = f"at {list(index)} is" if index else "is"
    return f"{place} {' and not '.join(told_apart(came[index].item(), expected[index].item()))}"


def told_apart(*numbers: float) -> list[str]:
    """Numbers with as many digits as it takes to see that they differ, six at least."""
    for digits in range(6, 17):
        written = [f"{number:.{digits}g}" for number in numbers]
        if len(set(written)) > 1:
            break
    return written
