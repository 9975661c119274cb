"""Starters: what is left of a solution when its answers are taken out."""

import pytest

from multigpu.checking.places import Course
from multigpu.checking.starters import (
    definitions,
    is_written,
    put_back,
    starter_of,
    text_of,
    write_starters,
)

from .conftest import COURSE

SOLUTION = '''"""Module."""

import copy  # solution only
from math import (  # solution only
    ceil,
)

import torch

LIMIT = 3  # stays


def split(batch, devices):
    """Cut.

    Long.
    """
    # a comment of the answer
    return _cut(batch)  # more


def _cut(batch):
    return batch


@torch.no_grad()
def bare(a, *, b=1) -> int:
    # only the answer says so
    x = a
    return x


class Sharded(torch.nn.Module):
    """A class."""

    def __init__(self, module):
        """Wrap."""
        super().__init__()
        self.module = module

    def forward(self, x):
        return self._inner(x)

    def _inner(self, x):
        return x


if __name__ == "__main__":
    print(split(1, 2))
'''

STARTER = '''"""Module."""


import torch

LIMIT = 3  # stays


def split(batch, devices):
    """Cut.

    Long.
    """
    raise NotImplementedError


@torch.no_grad()
def bare(a, *, b=1) -> int:
    raise NotImplementedError


class Sharded(torch.nn.Module):
    """A class."""

    def __init__(self, module):
        """Wrap."""
        raise NotImplementedError

    def forward(self, x):
        raise NotImplementedError


if __name__ == "__main__":
    print(split(1, 2))
'''


def test_a_starter_keeps_the_task_and_loses_the_answer():
    assert starter_of(SOLUTION) == STARTER


def test_a_starter_of_a_starter_is_itself():
    assert starter_of(STARTER) == STARTER


def test_what_is_written_and_what_is_not():
    assert [is_written(node) for node in definitions(STARTER).values()] == [False] * 3
    assert [is_written(node) for node in definitions(SOLUTION).values()] == [True] * 4


def test_putting_one_function_back_leaves_the_others():
    mine = SOLUTION.replace("return x\n\n\nclass", "return 5  # mine\n\n\nclass")
    result = put_back(mine, STARTER, "split")
    assert "raise NotImplementedError" in text_of(result, definitions(result)["split"])
    for other in ("bare", "_cut", "Sharded"):
        before, after = definitions(mine)[other], definitions(result)[other]
        assert text_of(result, after) == text_of(mine, before)
    assert "a comment of the answer" not in result


def test_a_deleted_function_comes_back_above_the_main_part():
    mine = STARTER.replace(text_of(STARTER, definitions(STARTER)["split"]), "")
    result = put_back(mine, STARTER, "split")
    assert not is_written(definitions(result)["split"])
    assert result.index("def split") < result.index("if __name__")


@pytest.fixture
def course(tmp_path):
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "data_parallel.py").write_text(SOLUTION)
    return Course(tmp_path)


def test_starters_are_written_but_never_over_an_answer(course):
    path = course.exercises / "data_parallel.py"
    assert write_starters(course) == ["data_parallel.py: written"]
    assert path.read_text() == STARTER
    assert write_starters(course) == ["data_parallel.py: up to date"]
    path.write_text(STARTER.replace("    raise NotImplementedError\n\n\n@", "    return 1\n\n\n@"))
    assert write_starters(course) == ["data_parallel.py: left alone, it holds answers (split)"]
    assert "return 1" in path.read_text()


@pytest.mark.parametrize("path", sorted(COURSE.solutions.glob("*.py")), ids=lambda path: path.stem)
def test_the_exercises_come_from_the_solutions(path):
    """Functions that are not written yet are as the solution's starter says."""
    starter = starter_of(path.read_text(encoding="utf-8"))
    exercise = (COURSE.exercises / path.name).read_text(encoding="utf-8")
    for name, node in definitions(exercise).items():
        if not is_written(node):
            assert text_of(exercise, node) == text_of(starter, definitions(starter)[name])
