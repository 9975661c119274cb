"""Numbers in the words of a verdict: "rows 3, 4 and 9", "exactly 1/3 of", "3 chunks"."""

from collections.abc import Iterable, Sequence
from fractions import Fraction


def count(number: int, noun: str) -> str:
    """``count(1, "chunk")`` is "1 chunk", ``count(3, "chunk")`` is "3 chunks"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(items: Iterable[object], *, most: int = 8) -> str:
    """For example "4, 4 and 2"; "a, b and 7 more" when there are more than ``most``."""
    words = [str(item) for item in items]
    if len(words) > most:
        words = [*words[: most - 2], f"{len(words) - most + 2} more"]
    if len(words) < 2:
        return words[0] if words else "none"
    return f"{', '.join(words[:-1])} and {words[-1]}"


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """For example "row 9", "rows 3, 4 and 9"; four or more in a row become "rows 3 to 8"."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1:
        return f"{noun} {first}"
    if len(numbers) > 3 and list(numbers) == list(range(first, last + 1)):
        return f"{noun}s {first} to {last}"
    return f"{noun}s {listed(numbers)}"


def times(factor: Fraction) -> str:
    """How a value relates to the right one: "exactly 3×", "exactly 1/3 of"."""
    if factor.denominator == 1:
        return f"exactly {factor.numerator}×"
    return f"exactly {factor.numerator}/{factor.denominator} of"
