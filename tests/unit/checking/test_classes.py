"""Exercises that ask for a class: what a starter, a wrong constructor and a right one come to."""

import textwrap

import pytest

from multigpu.checking.catalog import Exercise, Signature
from multigpu.checking.learner import Learner, Submission
from multigpu.checking.verdicts import Refused

from .conftest import CHAPTER

SIGNATURE = Signature(("module", "size"), (), "Wrapper(module, size=1)")
EXERCISE = Exercise(CHAPTER["data_parallel"], "Wrapper", SIGNATURE, "Wrap.")


def drive(submission, devices):
    wrapper = submission.Wrapper(3)
    return [wrapper.forward(), wrapper.double]


@pytest.fixture
def run(server, submission):
    def run(source):
        (submission / EXERCISE.file).write_text(textwrap.dedent(source), encoding="utf-8")
        return Learner(server, EXERCISE, Submission(submission)).run(drive, gpus=1)

    return run


def refused(run, source):
    with pytest.raises(Refused) as caught:
        run(source)
    return caught.value


RIGHT = """
class Base:
    def forward(self):
        return self.module

class Wrapper(Base):
    def __init__(self, module, size=1):
        self.module = module

    @property
    def double(self):
        if self.module:
            return self.module * 2
"""


def test_the_returns_of_all_methods_are_noted(run):
    answer = run(RIGHT)
    assert answer.results[0] == [3, 6]
    assert [place for _, place in answer.returns[0]] == [
        "",
        "data_parallel.py:4",
        "data_parallel.py:13",
    ]


@pytest.mark.parametrize(
    ("source", "method"),
    [
        ("def __init__(self, module, size=1):\n        raise NotImplementedError", "__init__"),
        ("def __init__(self, module, size=1): pass\n    def forward(self):\n        "
         "raise NotImplementedError", "forward"),
    ],
)  # fmt: skip
def test_a_method_that_is_not_written_is_named(run, source, method):
    verdict = refused(run, f"class Wrapper:\n    {source}\n")
    assert (verdict.status, verdict.message_id) == ("not_started", "not_started")
    assert f"Wrapper.{method} " in verdict.message
    assert "where: data_parallel.py:" in verdict.message
