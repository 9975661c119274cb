"""Real data to train on, small enough for a laptop.

from multigpu.data import digits
train, test = digits()
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multigpu.data.baselines import flight_baselines
    from multigpu.data.flight_rows import flights, write_flights
    from multigpu.data.handwritten import digits
    from multigpu.data.partitions import PartitionedFile
    from multigpu.data.split import Split
    from multigpu.data.topics import text

__all__ = [
    "PartitionedFile",
    "Split",
    "digits",
    "flight_baselines",
    "flights",
    "text",
    "write_flights",
]

HOMES = {  # no module is named like what it holds, or the module would take its place
    "PartitionedFile": "partitions",
    "Split": "split",
    "digits": "handwritten",
    "flight_baselines": "baselines",
    "flights": "flight_rows",
    "text": "topics",
    "write_flights": "flight_rows",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: the command must start quickly."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
