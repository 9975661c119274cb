"""Is it faster? Compares modes of training on this machine, and knows the formulas behind.

    from multigpu.scaling import Workload, compare
    compared = compare(Workload(name="mine", model=model, train=train), gpus=[1, 2])
    compared.table()      # in a notebook; print it in a terminal
    compared.picture()

Begin to read in comparing.py, then runs.py (the processes), measuring.py (what each of them does)
and results.py (what is made of it). speed_up.py and traffic.py are formulas; published.toml holds
other people's numbers.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multigpu.scaling.comparing import compare
    from multigpu.scaling.published import (
        links,
        published_efficiencies,
        published_overlaps,
        published_pipelines,
        published_times,
    )
    from multigpu.scaling.record import read_csv, write_csv
    from multigpu.scaling.results import Comparison
    from multigpu.scaling.workload import Workload, workload_of

HOMES = {
    "Comparison": "results",
    "Workload": "workload",
    "compare": "comparing",
    "links": "published",
    "published_efficiencies": "published",
    "published_overlaps": "published",
    "published_pipelines": "published",
    "published_times": "published",
    "read_csv": "record",
    "workload_of": "workload",
    "write_csv": "record",
}
__all__ = [
    "Comparison",
    "Workload",
    "compare",
    "links",
    "published_efficiencies",
    "published_overlaps",
    "published_pipelines",
    "published_times",
    "read_csv",
    "workload_of",
    "write_csv",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: the command must start quickly."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
