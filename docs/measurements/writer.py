"""How each measurement of this folder is stored: a CSV file in docs/reference/, with its origin.

    write("flights/trained.csv", "two gloo ranks", rows())

The first line begins with `#`: date, machine, versions, load and what else is said about it.
"""

import csv
import sys
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from multigpu.scaling.comparison import Machine

DOCS = Path(__file__).resolve().parents[1]


def write(target: str, about: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Measure by taking `rows`, and write and print each as soon as it is there.

    Times on pages come from here, so a busy machine is refused, unless the command ends in
    `--anyway`.
    """
    sys.path.insert(0, str(DOCS / "_ext"))
    from course import records  # late: who only tests a measurement needs no Sphinx

    try:
        load = records.refuse_busy(anyway="--anyway" in sys.argv)
    except records.MachineIsBusy as busy:
        sys.exit(str(busy))
    path = DOCS / "reference" / target
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# {date.today()}, {Machine.here()}, load {load} before it began; {about}\n")
        writer = None
        for row in rows:
            if writer is None:
                writer = csv.DictWriter(file, fieldnames=list(row), lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)
            file.flush()
            print(*row.values(), flush=True)
