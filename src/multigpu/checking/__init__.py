"""Checks a learner's code and explains what is wrong with it.

A check is a pytest test in ``tests/exercises``: it is marked with ``exercise``, runs the learner's
code through the ``learner`` fixture, compares what came back, and raises ``Wrong`` with an
explanation.  docs/reference/checks.rst tells how it all works; start reading at ``learner.py``.

Nothing here imports torch or pytest before it is needed: the command must start quickly.
"""

from typing import TYPE_CHECKING

from multigpu.checking.encoding import Foreign, Returned, describe
from multigpu.checking.verdicts import Verdict, Wrong

if TYPE_CHECKING:
    import pytest

__all__ = ["Foreign", "Returned", "Verdict", "Wrong", "describe", "exercise"]


def exercise(name: str) -> "pytest.MarkDecorator":
    """Mark a test as a check of one exercise: ``@exercise("data_parallel.split")``."""
    import pytest

    return pytest.mark.exercise(name)
