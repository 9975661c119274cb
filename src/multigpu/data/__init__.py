"""Real data to train on, small enough for a laptop.

from multigpu.data import digits
train, test = digits()
"""

from multigpu.data.datasets import Split, digits, text
from multigpu.data.flight_rows import flight_baselines, flights, write_flights
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
