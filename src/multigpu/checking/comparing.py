"""How a result is compared with the right one, and how a difference is told.

First tensors, then whole results: ``ResultComparison`` looks for the first difference, which is a
``Difference``.  ``Either``, ``Near`` and ``Rule`` are for results of which several are right.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from multigpu.checking.declaration import Declaration, Placed
from multigpu.checking.encoding import Foreign, Returned, describe
from multigpu.checking.verdicts import times
from multigpu.ranks.errors import counted, listed

RESULT = "the result"  # what the learner's function returned, in what a drive returns

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
    # In torch a quotient of int64 tensors is float32, so a right answer may multiply float64
    # numbers by a share in float32.  That is exact where n is a power of two.
    is_power_of_two = share_of & (share_of - 1) == 0
    tolerance = (EXACT if is_power_of_two else ROUNDED).get(expected.dtype)
    return _near(came, expected, tolerance, size)


def alike(came: Tensor, expected: Tensor) -> bool:
    """``same``, even if one of them went through float32: enough to name the cause of a mistake."""
    return _near(came, expected, ROUNDED.get(expected.dtype))


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
    if not torch.isfinite(came).all() or not torch.isfinite(expected).all():
        return None
    size = float(expected.abs().max()) if expected.numel() else 0.0
    if size == 0:
        return None
    scaled = expected.double() / size  # squares of large numbers would overflow
    ratio = float((came.double() / size * scaled).sum() / scaled.square().sum())
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


# --- whole results ------------------------------------------------------------------------------


class Either:
    """Any of these results is right, such as None or zeros for an unused parameter's gradient.

    A difference is described by comparison with the first of them.
    """

    def __init__(self, *results: Any) -> None:
        self.results = results


@dataclass(frozen=True)
class Near:
    """A Python float that agrees with this one in so many digits; nan is near nan."""

    value: float
    digits: int = 6


@dataclass(frozen=True)
class Rule:
    """Any result that keeps to a rule, where many do: a schedule, a way to divide layers.

    ``examine(result)`` says how it differs, or returns None.
    """

    examine: Callable[[Any], "Difference | None"]


@dataclass(frozen=True)
class Difference:
    """Where a result first differs from the right one.  ``kind`` becomes the id of the message."""

    kind: str
    came: str
    usually: str = ""
    rank: int = 0
    entry: int = 0  # where in a dict it is: the first steps come first

    @property
    def of_numbers(self) -> bool:
        """Whether the form is right, and the numbers are not."""
        return self.kind in ("wrong_values", "rounded")


class ResultComparison:
    """Looks for the first difference between two results of one declaration."""

    def __init__(
        self,
        parts: str,
        share_of: int = 1,
        read: Callable[[torch.Tensor], str | None] = lambda tensor: None,
    ) -> None:
        """``read`` says in words what a tensor with wrong values is, where it can."""
        self.parts, self.share_of, self.read = parts, share_of, read

    def difference(self, came: Any, right: Any, name: str = "") -> Difference | None:
        """``name`` is what the place is called: "chunk 1", "fc.weight.grad"."""
        if isinstance(right, Either):
            found = [self.difference(came, each, name) for each in right.results]
            return likeliest(found)
        it = name or RESULT
        if came is None and right is not None:
            if name and name != RESULT:
                return Difference("none", f"{it} is None")
            return Difference(
                "returned_nothing", f"{it} is None", "the function ends without `return`."
            )
        if isinstance(right, Rule):
            return right.examine(came)
        if isinstance(right, Placed | torch.Tensor):
            return self._tensor(came, right, name)
        if isinstance(right, dict):
            if not isinstance(came, dict):
                return Difference("wrong_type", f"{it} is {describe(came)}")
            return next(self._differences(came, right), None)
        if isinstance(right, Near):
            return self._number(came, right, it)
        if isinstance(right, list) and right and all(type(part) is int for part in right):
            return self._integers(came, right, it)
        if isinstance(right, list | tuple):
            if not isinstance(came, list | tuple):
                return Difference("wrong_type", f"{it} is {describe(came)}")
            if len(came) != len(right):
                there = f"{overview(came, self.parts)}, and not {len(right)}"
                return Difference("wrong_count", f"{name} has {there}" if name else there)
            by_name = ({f"{self.parts} {i}": v for i, v in enumerate(own)} for own in (came, right))
            return next(self._differences(*by_name), None)
        if type(came) is not type(right) and not (came == right and isinstance(came, int | float)):
            return Difference("wrong_type", f"{it} is {describe(came)} and not {right!r}")
        if came != right:
            return Difference("wrong_value", f"{it} is {came!r} and not {right!r}")
        return None

    def _differences(self, came: dict[str, Any], right: dict[str, Any]) -> Iterator[Difference]:
        """What has the wrong form first, then wrong numbers."""
        found = [
            self.difference(came[name], right[name], str(name))
            if name in came
            else Difference("missing", f"there is no {name}")
            for name in right
        ]
        there = [replace(each, entry=i) for i, each in enumerate(found) if each is not None]
        yield from sorted(there, key=lambda each: each.of_numbers)

    def _number(self, came: Any, right: Near, it: str) -> Difference | None:
        if not isinstance(came, float):
            return Difference("wrong_type", f"{it} is {describe(came)} and not a float")
        if near_enough(came, right):
            return None
        there, due = told_apart(came, right.value)
        return Difference("wrong_value", f"{it} is {there} and not {due}")

    def _integers(self, came: Any, right: list[int], it: str) -> Difference | None:
        if not isinstance(came, list):
            return Difference("wrong_type", f"{it} is {describe(came)} and not a list")
        other = next((part for part in came if type(part) is not int), None)
        if other is not None:
            return Difference("wrong_type", f"{it} has {describe(other)} in it and not an integer")
        if came == right:
            return None
        kind = "wrong_value" if len(came) == len(right) else "wrong_count"
        return Difference(kind, f"{it} is {shortened(came)} and not {shortened(right)}")

    def _tensor(self, came: Any, right: Any, name: str) -> Difference | None:
        it = name or RESULT
        placed = right if isinstance(right, Placed) else Placed(right)
        device, value = placed.device, placed.value
        if not isinstance(came, Returned):
            return Difference("not_a_tensor", f"{it} is {describe(came)}")
        if came.shape != value.shape:
            return Difference(
                "wrong_shape",
                f"{it} has the shape {tuple(came.shape)} and not {tuple(value.shape)}",
            )
        if came.dtype != value.dtype:
            return Difference("wrong_dtype", f"{it} is {came.dtype} and not {value.dtype}")
        if device is not None and came.device != device:
            return Difference("wrong_device", f"{it} is on {came.device} and not on {device}")
        if same(came.value, value.detach(), size=placed.size, share_of=self.share_of):
            return None
        factor = factor_between(came.value, value.detach())
        if factor is not None:
            return Difference("wrong_values", f"{it} is {times(factor)} the right value")
        found = f"{it} {largest_difference(came.value, value.detach())}"
        if is_rounded(came.value, value.detach()):
            smaller = "float32" if alike(came.value, value.detach()) else "float16 or bfloat16"
            if not value.is_floating_point():
                smaller = "float32 or float64"
            return Difference(
                "rounded",
                f"{found}: right, but only in the first digits",
                f"the numbers went through another dtype on the way, such as {smaller}. Keep them"
                " in their own dtype.",
            )
        reading = self.read(came.value)
        return Difference("wrong_values", f"{found}; {reading}" if reading else found)


def near_enough(came: float, right: Near) -> bool:
    """Whether a number agrees in as many digits as are asked for."""
    if math.isnan(right.value):
        return math.isnan(came)
    return math.isclose(came, right.value, rel_tol=10.0**-right.digits, abs_tol=1e-9)


def shortened(numbers: Sequence[int]) -> str:
    """For example "[0, 2, 4]"; the first of a long list."""
    if len(numbers) > 10:
        return f"[{', '.join(map(str, numbers[:8]))}, ...], {len(numbers)} in total"
    return str([*numbers])


def overview(came: Sequence[Any], parts: str) -> str:
    """For example "2 chunks, of shapes (3, 2) and (1, 2)"."""
    words = counted(len(came), parts) if came else f"no {parts} at all"
    values = [each.value if isinstance(each, Placed) else each for each in came]
    if values and all(isinstance(each, Returned | torch.Tensor) for each in values):
        shapes = [tuple(each.shape) for each in values]
        words += f", of shape {shapes[0]}" if len(shapes) == 1 else f", of shapes {listed(shapes)}"
    return words


def likeliest(found: Sequence[Difference | None]) -> Difference | None:
    """Of the differences from several right results: None if one is reached, or nearly reached."""
    if None in found:
        return None
    return next((each for each in found if each and each.kind == "rounded"), found[0])


def alike_results(one: Any, other: Any, right: Any = None) -> bool:
    """The same values, up to rounding through float32, on the same devices.

    Where one of several results is ``right``, two right ones are alike.
    """
    if isinstance(right, Either):
        found = [ResultComparison("").difference(each, right) for each in (one, other)]
        if not any(found):
            return True
    if isinstance(one, Returned) and isinstance(other, Returned):
        return one.device == other.device and alike_tensors(one.value, other.value)
    if isinstance(one, dict) and isinstance(other, dict):
        keys = (one.keys() | other.keys()) - {"times", "watched"}
        own = right if isinstance(right, dict) else {}
        return all(alike_results(one.get(key), other.get(key), own.get(key)) for key in keys)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        parts = right if isinstance(right, list | tuple) else []
        return len(one) == len(other) and all(
            alike_results(*pair) for pair in zip_longest(one, other, parts[: len(one)])
        )
    if isinstance(one, Foreign) and isinstance(other, Foreign):
        return one.type_name == other.type_name
    if isinstance(one, float) and isinstance(other, float):
        return near_enough(one, Near(other))
    return type(one) is type(other) and bool(one == other)


def alike_tensors(one: torch.Tensor, other: torch.Tensor) -> bool:
    """The same numbers, up to rounding; nan and inf in the same places."""
    odd = ~one.isfinite()
    if one.shape != other.shape or not odd.any():
        return alike(one, other)
    same_odd = torch.allclose(one[odd], other[odd], equal_nan=True)
    return same_odd and alike(one.masked_fill(odd, 0), other.masked_fill(odd, 0))


# --- one call ------------------------------------------------------------------------------------


def compare_one(
    declaration: Declaration, comparison: ResultComparison, came: Any, right: Any
) -> Difference | None:
    """One process's or one rank's result; after a plain call also what it did to its arguments."""
    if declaration.call[0] == "drive":
        return comparison.difference(came, right)
    result = came["result"]
    found = comparison.difference(result, right)
    if declaration.result != "returned":
        return _in_place(declaration, comparison, came, right, found)
    if found is not None:
        return found
    touched = [name for name in declaration.keeps if name in came["changed"]]
    if touched:
        return Difference(
            "input_changed",
            f"the result is right, but the caller's {touched[0]} changed",
            "something wrote into it in place. A method with _ at its end does that.",
        )
    if declaration.fresh and came["shares_memory"]:
        return Difference(
            "shares_memory",
            "the result is right, but it shares memory with an argument",
            "it is a view of the argument, or the argument itself: clone() makes a copy.",
        )
    if declaration.fresh and comparison.difference(came["kept"], right) is not None:
        return Difference(
            "result_overwritten",
            "the result was right, but a later call has changed it",
            "one buffer is kept for all calls, so that every result is in the same memory. Make a"
            " new tensor in every call.",
        )
    return None


def _in_place(
    declaration: Declaration,
    comparison: ResultComparison,
    came: dict[str, Any],
    right: Any,
    found: Difference | None,
) -> Difference | None:
    """The function writes into an argument: the numbers are there, and in its own memory."""
    name, result = declaration.result, came["result"]
    if found is not None:
        if comparison.difference(came["returned"], right) is None:
            return Difference(
                "returned_not_in_place",
                f"the right numbers were returned, but {name} does not hold them",
                f"`{name} = ...` gives the variable another tensor, which the caller never sees."
                " copy_(), += and recv() write into the tensor that was given.",
            )
        return replace(found, came=found.came.replace("the result", name, 1))
    memory = came["memory"]
    if memory is not None and not result.value.flatten().equal(memory.value):
        return Difference(
            "other_memory",
            f"{name} has the right numbers, but in other memory: a view that was taken before the"
            " call does not see them",
            "tensor.data = ..., set_() and resize_() put other memory under a tensor. copy_(), +=,"
            " add_() and recv() write into what is there.",
        )
    return None


def is_of_result(difference: Difference, declaration: Declaration) -> bool:
    """Whether it is in what the learner's function returned: then a line is to blame for it."""
    if declaration.call[0] == "drive":
        return RESULT in difference.came
    return declaration.result == "returned" and difference.kind != "input_changed"
