"""Record how much processor time a check of a whole folder takes, module by module.

    python docs/measurements/check_times.py     writes docs/reference/check_times/solutions.csv

The folder is ``solutions``, so every check runs to its end. A learner's mistake mostly makes it
shorter: after an answer that does not come the other checks of an exercise are skipped.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from writer import write

from multigpu.checking.catalog import Catalog, Course

ROOT = Path(__file__).resolve().parents[2]


def processor_seconds() -> float:
    """What all processes that ended below this one have used so far, their own ones included."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def check(module: str) -> list[dict[str, Any]]:
    """The verdicts on the reference answers of one module."""
    command = [sys.executable, "-m", "multigpu", "check", module, "--submission", "solutions"]
    done = subprocess.run(
        [*command, "--json"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    verdicts: list[dict[str, Any]] = json.loads(done.stdout)
    return verdicts


def rows() -> Iterator[dict[str, Any]]:
    """Check one module after the other."""
    for chapter in Catalog(Course(ROOT)).chapters:
        before = processor_seconds()
        verdicts = check(chapter.module)
        yield {
            "module": chapter.module,
            "exercises": len(verdicts),
            "checks": sum(verdict["total"] for verdict in verdicts),
            "processor seconds": round(processor_seconds() - before),
        }


if __name__ == "__main__":
    write("check_times/solutions.csv", "the folder solutions", rows())
