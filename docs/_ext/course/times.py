"""How long the parts of the course take: counted by the build, not guessed.

A page takes a minute for 120 words or for eight lines of code, and half a minute for each question.
That is slower than people read stories (238 words a minute: Brysbaert 2019, *Journal of Memory and
Language* 109), for here one stops to think.  A notebook takes a minute more for each cell.  An
exercise takes five minutes to read the task, and a minute for each line of the reference answer.
Parts of an hour are rounded to five minutes.
"""

import ast
from functools import cache

import nbformat
from docutils import nodes

from course.element import element
from course.execution import ROOT
from multigpu.checking.source import reached

WORDS_A_MINUTE, LINES_A_MINUTE = 120, 8
MINUTES_A_QUESTION, MINUTES_A_CELL = 0.5, 1.0
MINUTES_A_TASK, MINUTES_A_LINE = 5.0, 1.0
QUESTIONS = {"course-quiz", "course-predict"}


def rounded(minutes):
    """To five minutes, and no less than five."""
    return max(5, 5 * round(minutes / 5))


def of_page(doctree):
    """Minutes to read a page, not rounded. What its cells printed and drew does not count."""
    words = lines = questions = 0
    for node in doctree.findall():
        if isinstance(node, nodes.literal_block):
            lines += len([line for line in node.astext().splitlines() if line.strip()])
        elif isinstance(node, element):
            questions += bool(QUESTIONS & set(node["classes"]))
        elif isinstance(node, nodes.Text) and is_read(node):
            words += len(node.split())
    return words / WORDS_A_MINUTE + lines / LINES_A_MINUTE + questions * MINUTES_A_QUESTION


def is_read(node):
    """Whether a text is one that people read: no code, no output, no markup."""
    while (node := node.parent) is not None:
        if isinstance(node, nodes.literal_block | nodes.raw | nodes.comment | nodes.math_block):
            return False
        if isinstance(node, element) and node["tag"] == "pre":
            return False
    return True


@cache
def of_notebook(name):
    """Minutes for ``notebooks/<name>.ipynb``, rounded."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    minutes = 0.0
    for cell in notebook.cells:
        if cell.cell_type == "code":
            lines = [line for line in cell.source.splitlines() if line.strip()]
            minutes += len(lines) / LINES_A_MINUTE + MINUTES_A_CELL
        else:
            minutes += len(cell.source.split()) / WORDS_A_MINUTE
    return rounded(minutes)


@cache
def of_exercises(names):
    """Minutes for these exercises (``module.function``), rounded; nothing for none.

    What two of them share, say a private function, is counted once.
    """
    minutes, seen = MINUTES_A_TASK * len(names), set()
    for name in names:
        module, function = name.split(".")
        tree = ast.parse((ROOT / "solutions" / f"{module}.py").read_text(encoding="utf-8"))
        for statement in reached(tree, function):
            code = ast.unparse(without_docstrings(statement))
            if (module, code) not in seen:
                seen.add((module, code))
                minutes += len(code.splitlines()) * MINUTES_A_LINE
    return rounded(minutes) if names else 0


def without_docstrings(statement):
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return statement
