"""Flights: real sequences. One aircraft's destinations in time order; which one is next?

328,521 departures from the three airports of New York City in 2013 (see ``departures.py``). Each is
one row: what was known before the departure, and the destination that it had. ::

    train, test = flights()
    inputs, target = train[0]  # 34 numbers, and a destination from 0 to 103

The last 32 destinations of the same aircraft come from flights that had already departed, so no row
knows its own future. Training rows departed from January to October, test rows in November and
December. A test row may look back at any flight before it, also at one of November. The strongest
simple rules on these test rows are in ``baselines.py``.

What to know about the data (a test counts it): 4,037 aircraft with 1 to 546 flights each, half of
them with at most 53; 104 destinations, 3 origins, 16 carriers; 274,376 training and 54,145 test
rows, 77 of which are an aircraft's first flight. One destination, LEX, is in test rows only.
"""

from collections.abc import Collection
from os import PathLike
from typing import Any, NamedTuple

import torch
from torch.utils.data import TensorDataset

from multigpu.data.departures import departures
from multigpu.data.split import Split

HISTORY = 32  # destinations that a row looks back at
NUM_DESTINATIONS = 104
NUM_ORIGINS = 3
NUM_CARRIERS = 16
NO_FLIGHT = NUM_DESTINATIONS  # fills the history of an aircraft that has flown less often
TARGET = "destination"
TRAIN_MONTHS = range(1, 11)
TEST_MONTHS = range(11, 13)


class FlightCodes(NamedTuple):
    """What the numbers in a row mean: number i is the i-th code of its list, from A to Z."""

    destinations: list[str]
    origins: list[str]
    carriers: list[str]


def flight_columns(history: int = HISTORY) -> list[str]:
    """The names of a row's inputs: ``origin``, ``carrier``, ``ago_32``, …, ``ago_1``.

    ``ago_1`` is the aircraft's latest destination before this flight. The origin is where it now
    stands. Nothing is used that tells the destination by another name, like the number of the
    flight, the distance, or the scheduled time of arrival.
    """
    if history < 1:
        raise ValueError(f"history must be at least 1 destination, got {history}")
    return ["origin", "carrier", *(f"ago_{k}" for k in range(history, 0, -1))]


def flights(*, history: int = HISTORY) -> Split:
    """Load the flights: 274,376 training rows (January–October) and 54,145 test rows.

    Each row is `(inputs, destination)`: the inputs int64 of shape (history + 2,), in the order of
    :func:`flight_columns`; the destination int64 from 0 to 103. Where an aircraft has flown less
    often than `history` times, the oldest places hold 104. Rows are in the order of time.

    Raises ValueError if `history` is less than 1, ModuleNotFoundError without the data package.
    """
    frame = flights_frame(history=history)
    inputs = torch.from_numpy(frame[flight_columns(history)].to_numpy(copy=True))
    targets = torch.from_numpy(frame[TARGET].to_numpy(copy=True))
    tested = torch.from_numpy(frame["month"].isin(TEST_MONTHS).to_numpy(copy=True))
    return Split(
        train=TensorDataset(inputs[~tested], targets[~tested]),
        test=TensorDataset(inputs[tested], targets[tested]),
    )


def flights_frame(*, history: int = HISTORY, months: Collection[int] = range(1, 13)) -> Any:
    """The rows as a pandas frame of int64 columns, in the order of time.

    The columns: ``month``, the inputs of :func:`flight_columns`, and ``destination``, the target.
    Only rows of `months` are kept; they look back at earlier months all the same.
    """
    columns = flight_columns(history)
    wrong = sorted(set(months) - set(range(1, 13)))
    if wrong or not months:
        raise ValueError(f"months must be some of 1 to 12, got {wrong or 'none'}")
    import numpy as np
    import pandas as pd

    table = departures()
    encoded = {name: pd.factorize(table[name], sort=True)[0] for name in ("origin", "carrier")}
    target = pd.factorize(table[TARGET], sort=True)[0]
    previous = _previous(target, table["aircraft"], history)
    rows = np.column_stack([table["month"], *encoded.values(), previous, target])
    rows = rows.astype(np.int64, copy=False)  # 94 MB: a copy, here or below, would be half the time
    frame = pd.DataFrame(rows, columns=["month", *columns, TARGET], copy=False)
    kept = frame["month"].isin(list(months))
    return frame if kept.all() else frame[kept].reset_index(drop=True)


def write_flights(
    path: str | PathLike[str],
    *,
    history: int = HISTORY,
    months: Collection[int] = TRAIN_MONTHS,
) -> None:
    """Write :func:`flights_frame` as one parquet file of a single row group (8 MB).

    That is what a table from elsewhere often looks like, and what `multigpu partition` is for. By
    default it holds the training rows.
    """
    frame = flights_frame(history=history, months=months)
    frame.to_parquet(path, index=False, row_group_size=len(frame))


def flight_codes() -> FlightCodes:
    """The codes behind the numbers, like ``flight_codes().destinations[0] == "ABQ"``."""
    table = departures()
    return FlightCodes(*(sorted(set(table[name])) for name in (TARGET, "origin", "carrier")))


def _previous(target: Any, aircraft: Any, history: int) -> Any:
    """The `history` destinations before each flight of the same aircraft, the latest last.

    `target` has the shape (flights,) and is in the order of time; so is the answer, of shape
    (flights, history).
    """
    import numpy as np
    import pandas as pd

    number = pd.factorize(aircraft)[0]
    order = np.argsort(number, kind="stable")  # by aircraft, and by time for each
    sorted_target, sorted_number = target[order], number[order]
    answer = np.full((len(target), history), NO_FLIGHT, dtype=np.int64)
    for ago in range(1, history + 1):
        same = sorted_number[ago:] == sorted_number[:-ago]
        answer[order[ago:][same], history - ago] = sorted_target[:-ago][same]
    return answer
