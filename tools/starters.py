"""Write `exercises/*.py` anew from `solutions/*.py`: the same modules without their answers.

    python tools/starters.py

A file in which an answer has been written is left alone.
"""

import sys
from pathlib import Path

from multigpu.checking.catalog import Catalog, Course, find_course
from multigpu.checking.source import write_starter


def write_starters(course: Course) -> list[str]:
    """Write every exercise file anew, and say of each what became of it."""
    said = []
    for chapter in Catalog(course).chapters:
        try:
            done = write_starter(chapter.module, course)
        except ValueError as error:
            done = f"left alone: {error}"
        said.append(f"{chapter.module}.py: {done}")
    return said


if __name__ == "__main__":
    sys.stdout.write("\n".join(write_starters(find_course(Path.cwd()))) + "\n")
