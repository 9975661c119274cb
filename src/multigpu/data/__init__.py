"""Real data to train on, small enough for a laptop.

from multigpu.data import digits
train, test = digits()
"""

from typing import TYPE_CHECKING, Any

from multigpu.data.datasets import Split, digits, text
from multigpu.data.flight_rows import flight_baselines, flights, write_flights

if TYPE_CHECKING:
    from multigpu.data.parquet import PartitionedFile

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
    """Import `PartitionedFile` when it is asked for: pyarrow takes 0.15 s in every rank."""
    if name != "PartitionedFile":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from multigpu.data.parquet import PartitionedFile

    return PartitionedFile
