"""The picture of a center that everybody talks to."""

import re
from dataclasses import dataclass

import pytest

from multigpu.pictures.arrows import star


@dataclass(frozen=True)
class Copy:
    source: str
    target: str
    bytes: int


COPIES = [
    Copy("rank 2", "rank 0", 100), Copy("rank 0", "rank 2", 300),
    Copy("rank 1", "rank 0", 100), Copy("rank 1", "rank 0", 20),
]  # fmt: skip


def test_it_sums_by_link_and_says_what_the_centre_carries():
    picture = star(COPIES, "rank 0", notes={"rank 0": ["server"], "rank 1": ["8 rows"]})
    assert re.search(r"\b520 B\b", picture.svg())
    assert [" ".join(line.split()) for line in picture.lines] == [
        "rank 0 server",
        "rank 1 8 rows",
        "to rank 0",
        "rank 1 ──▶ rank 0 120 B in 2 calls",
        "rank 2 ──▶ rank 0 100 B",
        "from rank 0",
        "rank 0 ──▶ rank 2 300 B",
        "through the link of rank 0: 520 B",
    ]
    assert "8 rows" in picture.svg()
    assert re.search(r"rank 1\D*rank 0\D*120 B\D*2\b", picture.description)


def test_a_copy_that_passes_the_centre_by_is_refused():
    with pytest.raises(ValueError, match=r"rank 1\D*rank 2\b.*rank 0"):
        star([*COPIES, Copy("rank 1", "rank 2", 5)], "rank 0")
