"""Compares the speed of training modes on this machine, and has the formulas behind it.

    from multigpu.scaling import Workload, compare
    compared = compare(Workload(name="mine", model=model, train=train), gpus=[1, 2])
    compared.table()      # in a notebook; print it in a terminal
    compared.picture()

Start reading in measuring.py; comparison.py has its results. formulas.py predicts times and memory,
pipeline_times.py simulates schedules, and published.py has published times. plan.py puts the
formulas together to a model of large runs (`multigpu plan`), and layouts.py searches with it.
"""

from typing import TYPE_CHECKING, Any

from multigpu.scaling.comparison import Comparison, read_csv, write_csv
from multigpu.scaling.published import (
    links,
    published_efficiencies,
    published_overlaps,
    published_pipelines,
    published_steps,
    published_times,
)

if TYPE_CHECKING:
    from multigpu.scaling.measuring import Workload, compare, workload_of

__all__ = [
    "Comparison",
    "Workload",
    "compare",
    "links",
    "published_efficiencies",
    "published_overlaps",
    "published_pipelines",
    "published_steps",
    "published_times",
    "read_csv",
    "workload_of",
    "write_csv",
]


def __getattr__(name: str) -> Any:
    """Import the training code late: figures alone need no torch and appear a second earlier."""
    if name not in ("Workload", "compare", "workload_of"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from multigpu.scaling import measuring

    return getattr(measuring, name)
