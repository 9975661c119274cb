"""Checks a learner's code and explains what is wrong with it.

An exercise is declared in one file of ``tests/exercises``.  ``declaration.py`` tells what such a
file says, and ``judging.py`` how an answer is judged by it: the learner's code runs in workers
(``learner.py``), what came back is compared, and ``Wrong`` is raised with an explanation.
docs/reference/checks.rst tells how it all works.

The package itself, and what lists exercises, imports neither torch nor pytest: the command must
start quickly.
"""

from multigpu.checking.encoding import Foreign, Returned, describe
from multigpu.checking.verdicts import Verdict, Wrong

__all__ = ["Foreign", "Returned", "Verdict", "Wrong", "describe"]
