"""Words of the findings: ranks in a row, ordinals, places in the code."""

import os
import re
from collections.abc import Iterable

_CELL = re.compile(r"ipykernel_\d+|<ipython-input")


def ranks_in_words(ranks: Iterable[int]) -> str:
    """`rank 2`, `ranks 0 and 1`, `ranks 0, 1 and 3`."""
    named = sorted(set(ranks))
    return f"{'rank' if len(named) == 1 else 'ranks'} {listed(named)}"


def listed(things: Iterable[object]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    words = [str(thing) for thing in things]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def ordinal(number: int) -> str:
    """`1st`, `2nd`, `3rd`, `4th`, `11th`."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{ending or 'th'}"


def counted(number: int, thing: str) -> str:
    """`1 all_reduce`, `4 all_reduces`, `2 broadcasts`."""
    if number == 1:
        return f"1 {thing}"
    return f"{number} {thing}{'es' if thing.endswith(('s', 'ch', 'x')) else 's'}"


def a(thing: str) -> str:
    """`an all_reduce`, `a broadcast`."""
    return f"{'an' if thing[:1] in 'aeiou' else 'a'} {thing}"


def place(file: str, line: int, function: str = "") -> str:
    """`train.py:41`; `notebook cell of train, line 3`, for the files of cells have no names."""
    if not _CELL.search(file):
        return f"{os.path.basename(file)}:{line}"
    name = function.rpartition(".")[2]
    return f"notebook cell{f' of {name}' if name.isidentifier() else ''}, line {line}"
