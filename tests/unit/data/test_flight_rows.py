"""The flights: what is counted in their description, and rows that never see their future."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from multigpu.data import flight_baselines, flights, write_flights
from multigpu.data.flight_rows import (
    HISTORY,
    NO_FLIGHT,
    departures,
    flight_codes,
    flight_columns,
    flights_frame,
)


@pytest.fixture(scope="module")
def table():
    return departures()


@pytest.fixture(scope="module")
def split():
    return flights()


@pytest.mark.slow
def test_the_statistics_are_those_of_the_description(table, split):
    flown = table["aircraft"].value_counts()
    assert len(table) == 328_521
    assert (len(flown), flown.max(), flown.min(), flown.median()) == (4_037, 546, 1, 53)
    assert [len(codes) for codes in flight_codes()] == [104, 3, 16]
    assert (len(split.train), len(split.test)) == (274_376, 54_145)
    assert (split.test.tensors[0][:, -1] == NO_FLIGHT).sum() == 77
    trained, tested = (set(data.tensors[1].tolist()) for data in split)
    assert [flight_codes().destinations[i] for i in tested - trained] == ["LEX"]


def test_rows_are_int64_and_within_their_vocabularies(split):
    for inputs, target in (data.tensors for data in split):
        assert inputs.shape == (len(target), HISTORY + 2)
        assert inputs.dtype == target.dtype == torch.int64
        assert inputs.min() == 0
        assert inputs.max(dim=0).values.tolist() == [2, 15, *([NO_FLIGHT] * HISTORY)]
        assert 0 <= target.min() <= target.max() < 104


@pytest.mark.slow
def test_a_row_holds_the_flights_that_its_aircraft_had_left_on_before(table):
    codes = {name: i for i, name in enumerate(flight_codes().destinations)}
    frame = flights_frame()
    places = np.random.default_rng(0).integers(0, len(table), 60)
    table = table[table["aircraft"].isin(table.loc[places, "aircraft"])]  # a smaller one to search
    for place in places:
        this = table.loc[place]
        same = table[(table["aircraft"] == this["aircraft"]) & (table["when"] < this["when"])]
        earlier = [codes[name] for name in same["destination"].tail(HISTORY)]
        expected = [NO_FLIGHT] * (HISTORY - len(earlier)) + earlier
        row = frame.loc[place]
        assert row[[f"ago_{k}" for k in range(HISTORY, 0, -1)]].tolist() == expected
        assert row["destination"] == codes[this["destination"]]


def test_the_frame_and_the_file_hold_the_rows_of_the_split(split, tmp_path):
    write_flights(tmp_path / "flights.parquet")
    file = pq.ParquetFile(tmp_path / "flights.parquet")
    assert file.num_row_groups == 1
    assert file.schema_arrow.names == ["month", *flight_columns(), "destination"]
    frame = file.read().to_pandas()
    inputs = torch.from_numpy(frame[flight_columns()].to_numpy(copy=True))
    assert inputs.equal(split.train.tensors[0])
    assert frame["destination"].tolist() == split.train.tensors[1].tolist()


@pytest.mark.slow
def test_baselines_reach_what_is_known_of_them():
    figures = flight_baselines()
    recall = {rule: round(each["recall@10"], 3) for rule, each in figures.items()}
    assert recall == {
        "popular": 0.422,
        "markov": 0.667,
        "own": 0.771,
        "own, from here": 0.779,
        "recent": 0.773,
    }
    ndcg = [round(each["ndcg@10"], 3) for each in figures.values()]
    assert ndcg == [0.200, 0.440, 0.498, 0.522, 0.503]
