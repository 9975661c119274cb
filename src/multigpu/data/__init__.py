"""Real data to train on, small enough for a laptop.

from multigpu.data import digits
train, test = digits()
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multigpu.data.datasets import Split, digits, text
    from multigpu.data.flight_rows import flight_baselines, flights, write_flights
    from multigpu.data.parquet import PartitionedFile

HOMES = {  # no module is named like what it holds, or the module would take its place
    "PartitionedFile": "parquet",
    "Split": "datasets",
    "digits": "datasets",
    "flight_baselines": "flight_rows",
    "flights": "flight_rows",
    "text": "datasets",
    "write_flights": "flight_rows",
}
__all__ = [
    "PartitionedFile",
    "Split",
    "digits",
    "flight_baselines",
    "flights",
    "text",
    "write_flights",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: the command must start quickly."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
