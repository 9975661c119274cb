"""What simple rules reach on the test flights: the numbers that a model has to beat.

Each rule names ten destinations for a flight, the likeliest first. Recall@10 is the share of test
flights whose destination is among them; NDCG@10 also counts the place: 1 for the first,
1 / log2(place + 1) for the others, 0 when it is not there. All rules have seen the training months
only, except `recent`, which reads what the row itself holds. Destinations that a rule cannot tell
apart are in the order of popularity. ::

    from multigpu.data import flight_baselines
    flight_baselines()["own"]["recall@10"]
"""

from typing import Any

from multigpu.data.departures import departures
from multigpu.data.flight_rows import (
    HISTORY,
    NO_FLIGHT,
    NUM_DESTINATIONS,
    TARGET,
    TRAIN_MONTHS,
    flights_frame,
)

RULES = {
    "popular": "the destinations with the most flights",
    "markov": "what most often followed the aircraft's last destination",
    "own": "the aircraft's own most frequent destinations",
    "own, from here": "the aircraft's own most frequent ones from this airport",
    "recent": f"the most frequent of the aircraft's last {HISTORY} destinations",
}


def flight_baselines(*, k: int = 10) -> dict[str, dict[str, float]]:
    """Recall@k and NDCG@k of each of `RULES` on the 54,145 test flights; about 3 s.

    The answer has the form ``{"popular": {"recall@10": 0.42, "ndcg@10": 0.20}, …}``.
    Raises ValueError if `k` is not from 1 to 104.
    """
    if not 1 <= k <= NUM_DESTINATIONS:
        raise ValueError(f"k must be from 1 to {NUM_DESTINATIONS} destinations, got {k}")
    import numpy as np
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
        "own, from here": aircraft * 3 + origin,
    }
    figures = {}
    for rule, group in groups.items():
        counts = np.zeros((group.max() + 1, NUM_DESTINATIONS))
        np.add.at(counts, (group[trained], target[trained]), 1)
        best = _first(counts, popularity, k)[group[~trained]]
        figures[rule] = _figures(best, target[~trained], k)
    history = frame.filter(like="ago_").to_numpy()[~trained]
    best = _first(_occurrences(history), popularity, k)
    return figures | {"recent": _figures(best, target[~trained], k)}


def _first(counts: Any, popularity: Any, k: int) -> Any:
    """The k most frequent destinations of each row of `counts`; ties go to the popular ones."""
    import numpy as np

    return np.argsort(-(counts + popularity / (popularity.sum() + 1)), axis=1, kind="stable")[:, :k]


def _occurrences(history: Any) -> Any:
    """How often each destination stands in each row of `history`: (rows, 104)."""
    import numpy as np

    counts = np.zeros((len(history), NO_FLIGHT + 1))
    for column in history.T:
        counts[np.arange(len(history)), column] += 1
    return counts[:, :NO_FLIGHT]


def _figures(best: Any, target: Any, k: int) -> dict[str, float]:
    """Recall and NDCG of `best`, of shape (rows, k), where one destination per row is right."""
    import numpy as np

    hits = best == target[:, None]
    places = np.arange(2, k + 2)  # the first place counts 1 / log2(2)
    gains = (hits / np.log2(places)).sum(axis=1)
    return {f"recall@{k}": float(hits.any(axis=1).mean()), f"ndcg@{k}": float(gains.mean())}
