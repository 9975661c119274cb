"""Record how much processor time a check of a whole folder takes, module by module.

    python docs/record_check_times.py     writes docs/reference/check_times/solutions.csv

The folder is ``solutions``, so every check runs to its end. A learner's mistake mostly makes it
shorter: after an answer that does not come the other checks of an exercise are skipped.
"""

import csv
import json
import resource
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

from multigpu.checking.catalog import Catalog, Course
from multigpu.scaling.comparison import Machine

DOCS = Path(__file__).resolve().parent
TARGET = DOCS / "reference" / "check_times" / "solutions.csv"


def processor_seconds() -> float:
    """What all processes that ended below this one have used so far, their own ones included."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def check(module: str) -> list[dict[str, Any]]:
    """The verdicts on the reference answers of one module."""
    command = [sys.executable, "-m", "multigpu", "check", module, "--submission", "solutions"]
    done = subprocess.run(
        [*command, "--json"], cwd=DOCS.parent, check=True, stdout=subprocess.PIPE, text=True
    )
    verdicts: list[dict[str, Any]] = json.loads(done.stdout)
    return verdicts


def main() -> None:
    """Check one module after the other, and write a line for each."""
    TARGET.parent.mkdir(exist_ok=True)
    with TARGET.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# {date.today()}, {Machine.here()}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["module", "exercises", "checks", "processor seconds"])
        for chapter in Catalog(Course(DOCS.parent)).chapters:
            before = processor_seconds()
            verdicts = check(chapter.module)
            checks = sum(verdict["total"] for verdict in verdicts)
            used = round(processor_seconds() - before)
            writer.writerow([chapter.module, len(verdicts), checks, used])
            file.flush()


if __name__ == "__main__":
    main()
