"""The words that findings are made of."""

import pytest
from said import numbers_in

from multigpu.ranks.errors import counted, listed, ordinal, place, ranks_in_words

CELL = "/tmp/ipykernel_4711/1234.py"


def test_ranks_in_a_row():
    assert ranks_in_words([2]) == "rank 2"
    for ranks in ([1, 0], {3, 0, 1}):
        said = ranks_in_words(ranks)
        assert said.startswith("ranks ")
        assert numbers_in(said) == sorted(ranks)
    assert listed([]) == ""


@pytest.mark.parametrize(
    ("number", "word"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (23, "23rd")],
)
def test_ordinals(number, word):
    assert ordinal(number) == word


def test_counted_things():
    assert counted(1, "all_reduce") == "1 all_reduce"
    assert counted(4, "broadcast") == "4 broadcasts"


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
