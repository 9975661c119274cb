"""Write `exercises/*.py` anew from `solutions/*.py`: the same modules without their answers.

    python tools/starters.py

A file in which an answer has been written is left alone.
"""

import sys
from pathlib import Path

from multigpu.checking.catalog import CHAPTERS, Course, find_course
from multigpu.checking.source import starter_for, written_in


def write_starters(course: Course) -> list[str]:
    """Write every exercise file anew, and say of each what became of it."""
    modules = [chapter.module for chapter in CHAPTERS]
    return [write(course, m) for m in modules if (course.solutions / f"{m}.py").is_file()]


def write(course: Course, module: str) -> str:
    """Write one file, unless it holds answers."""
    path = course.exercises / f"{module}.py"
    starter = starter_for(module, course)
    if path.is_file():
        source = path.read_text(encoding="utf-8")
        if written := written_in(source, module, course):
            return f"{path.name}: left alone, it holds answers ({', '.join(written)})"
        if source == starter:
            return f"{path.name}: up to date"
    path.parent.mkdir(exist_ok=True)
    path.write_text(starter, encoding="utf-8")
    return f"{path.name}: written"


if __name__ == "__main__":
    sys.stdout.write("\n".join(write_starters(find_course(Path.cwd()))) + "\n")
