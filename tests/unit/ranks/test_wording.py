"""The words that findings are made of."""

import pytest

from multigpu.ranks.wording import a, counted, listed, ordinal, place, ranks_in_words

CELL = "/tmp/ipykernel_4711/1234.py"


def test_ranks_in_a_row():
    assert ranks_in_words([2]) == "rank 2"
    assert ranks_in_words([1, 0]) == "ranks 0 and 1"
    assert ranks_in_words({3, 0, 1}) == "ranks 0, 1 and 3"
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
    assert a("all_gather") == "an all_gather"
    assert a("barrier") == "a barrier"


def test_places_in_files_and_in_notebooks():
    assert place("/home/me/train.py", 41, "step") == "train.py:41"
    assert place(CELL, 3, "Trainer.step") == "notebook cell of step, line 3"
    assert place(CELL, 3, "<module>") == "notebook cell, line 3"
    assert place("<ipython-input-5-abc>", 3) == "notebook cell, line 3"
