"""What is read from a module's text: its starter, and what is written in it."""

import ast

import pytest
from starters import write_starters

from multigpu.checking.catalog import Course
from multigpu.checking.source import (
    definitions,
    fingerprint,
    is_written,
    put_back,
    reached,
    starter_for,
    starter_of,
    text_of,
    written_in,
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


def test_what_is_written_and_what_is_not():
    assert [is_written(node) for node in definitions(STARTER).values()] == [False] * 3
    assert [is_written(node) for node in definitions(SOLUTION).values()] == [True] * 4


def test_what_a_function_reaches_has_no_names_of_comprehensions():
    tree = ast.parse(
        "squares = [x * x for x in range(3)]\nscale: int = 2\n\ndef f(x):\n    return x * scale"
    )
    function, *helpers = reached(tree, "f")
    assert function.name == "f"
    assert [ast.unparse(helper) for helper in helpers] == ["scale: int = 2"]


MAIN = "if __name__ == '__main__':"
TRY = "try:\n    from a import SCALE\nexcept ImportError:"
USES_ALL = "def f(x):\n    return L().go(x) * SCALE * TABLE['a']\n"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("if True:\n    SCALE = 2", "if True:\n    SCALE = 3"),
        (f"{TRY}\n    SCALE = 2", f"{TRY}\n    SCALE = 3"),
        ("TABLE.update(a=2)", "TABLE.update(a=3)"),
        ("TABLE['a'] = 2", "TABLE['a'] = 3"),
        ("L.go = patched", ""),
        (
            "def patched(self): return 1\nL.go = patched",
            "def patched(self): return 2\nL.go = patched",
        ),
        ("SCALE = 2\nSCALE += 1", "SCALE += 1\nSCALE = 2"),
        ("from a import SCALE", "from b import SCALE"),
        ("import a as TABLE, other", "import b as TABLE, other"),
        ("from a import *", "from b import *"),
        ("def h(): return 1\ny = TABLE['a'] = h", "def h(): return 2\ny = TABLE['a'] = h"),
        ("_ = setattr(L, 'go', 2)", "_ = setattr(L, 'go', 3)"),
        ("def patch(): L.x = 2\n_ = patch()", "def patch(): L.x = 3\n_ = patch()"),
        ("L.go, y = 1, 2", "L.go, y = 3, 2"),
        ("y = TABLE['a'] = 2", "y = TABLE['a'] = 3"),
        (f"{MAIN}\n    pass\nelse:\n    SCALE = 2", f"{MAIN}\n    pass\nelse:\n    SCALE = 3"),
    ],
)
def test_code_that_changes_what_a_function_does_changes_its_fingerprint(one, other):
    assert fingerprint(f"{one}\n{USES_ALL}", "f") != fingerprint(f"{other}\n{USES_ALL}", "f")


@pytest.mark.parametrize(
    "other",
    [
        "def g(x):\n    return x",
        "OTHER = 2",
        "_own = 1\ng = _own",
        "import math",
        "from torch.nn import functional as F",
        "g = lambda x: run(x, 2)",
        '"""A docstring."""',
        "# a comment",
        f"{MAIN}\n    print(f(2))",
        "if '__main__' == __name__:\n    print(f(2))",
    ],
)
def test_code_of_other_exercises_does_not_change_it(other):
    assert fingerprint(f"{other}\n{USES_ALL}", "f") == fingerprint(USES_ALL, "f")


def test_a_function_that_is_only_passed_on_belongs_to_the_name_it_is_bound_to():
    ones = [f"def _own(x): return {n}\ng = partial(_own, 2)\ndef f(x): ..." for n in (1, 2)]
    assert len({fingerprint(one, "f") for one in ones}) == 1
    assert len({fingerprint(one, "g") for one in ones}) == 2


def test_a_function_below_an_if_has_a_fingerprint():
    ones = [f"if True:\n    def f(x): return {n}" for n in (1, 2)]
    assert len({fingerprint(one, "f") for one in ones}) == 2


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("split = _own", ["split"]),
        ("if True:\n    split = _own\nelse:\n    bare: int = _own", ["split", "bare"]),
        ("try:\n    import a\nexcept ImportError:\n    def split(): return 1", ["split"]),
        ("if True:\n    def split(): raise NotImplementedError", []),
        ("with a:\n    class Own:\n        split = 1\nLIMIT = 4", ["Own"]),
        ("if True:\n    def _own():\n        split = 1", ["_own"]),
        (f"if {'1 + ' * 900}1:\n    split = 1", ["split"]),  # nested deep
        ("if __name__ == '__main__':\n    split = 1", []),
    ],
)
def test_an_answer_may_be_written_in_other_ways_than_as_a_function(course, source, written):
    assert written_in(source, "data_parallel", course) == written


@pytest.mark.parametrize(
    ("source", "restored"),
    [
        ("if True:\n    def split(a, b): return 1\n", ["split"]),
        ("from __future__ import annotations; import os\n# about g\ndef g(): ...\n", ["os"]),
    ],
)
def test_what_is_put_back_is_what_counts(source, restored):
    names = {}
    exec(put_back(source, STARTER, "bare"), names)
    with pytest.raises(NotImplementedError):
        names["bare"](1)
    assert set(restored) <= names.keys()
    names = {}
    exec(put_back(source, STARTER, "split"), names)
    with pytest.raises(NotImplementedError):
        names["split"](1, 2)


@pytest.fixture
def course(tmp_path):
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "data_parallel.py").write_text(SOLUTION)
    return Course(tmp_path)


def test_starters_are_written_but_never_over_an_answer(course):
    path = course.exercises / "data_parallel.py"
    assert write_starters(course) == ["data_parallel.py: written"]
    assert path.read_text() == STARTER
    (said,) = write_starters(course)
    assert said.endswith("up to date")
    path.write_text(STARTER.replace("    raise NotImplementedError\n\n\n@", "    return 1\n\n\n@"))
    (said,) = write_starters(course)
    assert "answers (split)" in said
    assert "return 1" in path.read_text()
    path.write_bytes("# caf\xe9\n".encode("latin-1"))
    (said,) = write_starters(course)
    assert "cannot be read" in said


def test_an_exercise_may_be_bound_by_an_assignment(course):
    starter = starter_for("data_parallel", course)
    assert written_in(starter, "data_parallel", course) == []  # LIMIT is not an exercise
    bound = f"{starter}\n\ndef _own(batch, devices):\n    return batch\n\n\nsplit = _own\n"
    assert written_in(bound, "data_parallel", course) == ["_own", "split"]
    annotated = bound.replace("split = _own", "split: Callable = _own")
    assert written_in(annotated, "data_parallel", course) == ["_own", "split"]


@pytest.mark.parametrize("frame", ["if torch:\n{}", "try:\n{}except ImportError:\n    pass\n"])
def test_an_exercise_may_be_defined_below_another_statement(course, frame):
    inside = frame.format("    def split(batch, devices):\n        return batch\n")
    assert written_in(inside, "data_parallel", course) == ["split"]
    not_at_import = f"{MAIN}\n    split = 1\n"
    assert written_in(not_at_import, "data_parallel", course) == []


def test_a_function_is_put_back_with_the_imports_that_it_needs():
    starter = "from math import (\n    ceil,\n)\nimport os\nimport a.b\n\n\n"
    starter += "def f(x: a.b.C) -> ceil:\n    raise NotImplementedError\n"
    source = '# mine\n"""Mine."""\nfrom __future__ import annotations\nimport a\ndef f(x): ...\n'
    whole = put_back(source, starter, "f")
    assert whole.splitlines()[:5] == [*source.splitlines()[:3], "from math import ceil", "import a"]
    assert text_of(whole, definitions(whole)["f"]) == text_of(starter, definitions(starter)["f"])
    assert put_back(whole, starter, "f") == whole


@pytest.mark.parametrize("path", sorted(COURSE.solutions.glob("*.py")), ids=lambda path: path.stem)
def test_the_exercises_come_from_the_solutions(path):
    """Functions that are not written yet are as the course hands them out."""
    starter = starter_for(path.stem, COURSE)
    exercise = (COURSE.exercises / path.name).read_text(encoding="utf-8")
    written = written_in(exercise, path.stem, COURSE)
    for name, node in definitions(exercise).items():
        if name not in written:
            assert text_of(exercise, node) == text_of(starter, definitions(starter)[name])


@pytest.mark.parametrize(
    "path", sorted(COURSE.solutions.glob("broken/*.py")), ids=lambda path: path.stem
)
def test_broken_code_has_the_tasks_and_signatures_of_the_solution(path):
    broken = definitions(path.read_text(encoding="utf-8"))
    solved = definitions((COURSE.solutions / path.name).read_text(encoding="utf-8"))
    public = {name: node for name, node in solved.items() if not name.startswith("_")}
    assert {name for name in broken if not name.startswith("_")} == set(public)
    for name, node in public.items():
        assert ast.get_docstring(broken[name]) == ast.get_docstring(node)
        assert ast.unparse(broken[name].args) == ast.unparse(node.args)
