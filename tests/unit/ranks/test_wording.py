"""The words that findings are made of."""

import pytest
from said import numbers_in

from multigpu.ranks.errors import counted, listed, ordinal, place

CELL = "/tmp/ipykernel_4711/1234.py"


@pytest.mark.parametrize(
    ("number", "word"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (23, "23rd")],
)
def test_ordinals(number, word):
    assert ordinal(number) == word


@pytest.mark.parametrize(
    ("number", "thing", "words"),
    [
        (1, "entry", "1 entry"),
        (2, "entry", "2 entries"),
        (2, "array", "2 arrays"),
        (0, "batch", "0 batches"),
        (3, "process", "3 processes"),
        (1024, "broadcast", "1,024 broadcasts"),
    ],
)
def test_counts_have_the_right_plural(number, thing, words):
    assert counted(number, thing) == words


def test_a_long_list_ends_with_how_many_more_there_are():
    assert [listed(range(n)) for n in (0, 1, 2, 3)] == ["none", "0", "0 and 1", "0, 1 and 2"]
    assert numbers_in(listed(range(9))) == [0, 1, 2, 3, 4, 5, 3]
    assert numbers_in(listed(range(9), most=None)) == [*range(9)]


def test_places_in_files_and_in_notebooks():
    assert place("/home/me/train.py", 41, "step") == "train.py:41"
    in_a_function = place(CELL, 3, "Trainer.step")
    assert all(part in in_a_function for part in ("notebook cell", "step", "line 3"))
    assert "Trainer" not in in_a_function
    outside = place(CELL, 3, "<module>")
    assert all(part in outside for part in ("notebook cell", "line 3"))
    assert "module" not in outside
    assert place("<ipython-input-5-abc>", 3) == outside
    assert numbers_in(in_a_function) == numbers_in(outside) == [3]
