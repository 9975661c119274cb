"""How a learner's tensors are compared with the right ones, and how a difference is told."""

from fractions import Fraction

import torch
from torch import Tensor

# How far apart numbers may be, relative to the largest. Other types must be equal.
EXACT = {torch.float64: 1e-9, torch.float32: 1e-5}
ROUNDED = EXACT | {torch.float64: 1e-6}  # float32 has come near them
LARGEST = 64  # a factor of n/m is looked for up to this n and m


def same(came: Tensor, expected: Tensor, *, size: float = 0.0, share_of: int = 1) -> bool:
    """Equal in shape, type and numbers, up to the order in which a GPU adds them up.

    ``size`` is that of the numbers they come from, where these may cancel.  ``share_of=n`` says
    that right answers multiply by a share, such as 1/n or rows/n; where there are several, n is
    the product of theirs.
    """
    return _near(came, expected, tolerance(expected.dtype, share_of=share_of), size)


def alike(came: Tensor, expected: Tensor) -> bool:
    """``same``, even if one of them went through float32: enough to name the cause of a mistake."""
    return _near(came, expected, ROUNDED.get(expected.dtype))


def tolerance(dtype: torch.dtype, *, share_of: int = 1) -> float | None:
    """How far apart numbers may be, relative to the largest; None if they must be equal.

    In torch a quotient of int64 tensors is float32, so a right answer may multiply float64 numbers
    by a share in float32.  That is exact where n is a power of two.
    """
    is_power_of_two = share_of & (share_of - 1) == 0
    return (EXACT if is_power_of_two else ROUNDED).get(dtype)


def _near(came: Tensor, expected: Tensor, tolerance: float | None, size: float = 0.0) -> bool:
    if came.shape != expected.shape or came.dtype != expected.dtype:
        return False
    if tolerance is None:
        return torch.equal(came, expected)
    size = max(size, float(expected.abs().max()) if expected.numel() else 0.0, 1e-3)
    return torch.allclose(came, expected, rtol=tolerance, atol=tolerance * size)


def factor_between(came: Tensor, expected: Tensor) -> Fraction | None:
    """The simple fraction (2, 1/3, 3/4) by which ``came`` is larger everywhere, else None.

    None too when they are equal, or when all is zero.
    """
    real = came.is_floating_point() and expected.is_floating_point()
    if came.shape != expected.shape or not real:
        return None
    square = float((expected * expected).sum())
    if square == 0 or not torch.isfinite(came).all():
        return None
    ratio = float((came * expected).sum()) / square
    factor = Fraction(ratio).limit_denominator(LARGEST)
    if factor <= 0 or factor == 1 or factor > LARGEST:
        return None
    return factor if alike(came, expected * float(factor)) else None


def is_rounded(came: Tensor, expected: Tensor) -> bool:
    """Whether every number is right up to what float16 or bfloat16 leave of it, or float32.

    Of integers, whether they are too large for float32 and right up to what it leaves of them.
    """
    if came.shape != expected.shape or not expected.numel():
        return False
    exact = not expected.is_floating_point()
    came, expected = came.double(), expected.double()
    largest = float(expected.abs().max())
    if exact:
        return largest > 2**24 and torch.allclose(came, expected, rtol=0, atol=2**-23 * largest)
    # One rounding is 2**-9 of a number; a sum has several, of numbers that may be larger than it.
    return torch.allclose(came, expected, rtol=2**-6, atol=2**-9 * largest)


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
    if all(isinstance(number, int) for number in numbers):
        return [str(number) for number in numbers]
    for digits in range(6, 17):
        written = [f"{number:.{digits}g}" for number in numbers]
        if len(set(written)) > 1:
            break
    return written
