"""Which rank reads which rows: decided from the sizes of the row groups, without reading any."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multigpu.data.row_groups import (
    epoch_plan,
    fixed_number,
    partitions_for,
    rows_in,
    rows_per_rank,
    rows_so_far,
    served_evenly,
    suggested_partitions,
)

row_groups = st.lists(st.integers(0, 50), min_size=1, max_size=16).filter(any)
worlds = st.integers(1, 8)
quick = settings(deadline=None, max_examples=50)


def rows_of(pieces):
    return [(p.group, row) for p in pieces for row in range(p.start, p.stop)]


@quick
@given(row_groups, worlds, st.integers(0, 5), st.integers(0, 5), st.booleans())
def test_a_plan_has_every_row_once_and_starves_no_rank(sizes, world_size, seed, epoch, shuffle):
    plan = epoch_plan(sizes, world_size, seed=seed, epoch=epoch, shuffle=shuffle)
    rows = [row for pieces in plan for row in rows_of(pieces)]
    assert sorted(rows) == [(g, row) for g, size in enumerate(sizes) for row in range(size)]
    assert len(plan) == world_size
    assert all(plan) or sum(sizes) < world_size
    assert all(piece.rows for pieces in plan for piece in pieces)


def test_a_short_last_row_group_is_not_always_read_last():
    plans = [epoch_plan([10, 10, 10, 10, 10, 3], 2, epoch=epoch) for epoch in range(10)]
    places = {
        [piece.rows for piece in pieces].index(3)
        for plan in plans
        for pieces in plan
        if rows_in(pieces) == 23
    }
    assert places == {0, 1, 2}


@quick
@given(st.lists(st.integers(1, 50), min_size=1, max_size=16), worlds)
def test_no_rank_has_more_than_its_share_and_one_row_group(sizes, world_size):
    loads = rows_per_rank(sizes, world_size)
    assert max(loads) <= sum(sizes) / world_size + max(sizes)


def test_fewer_row_groups_than_ranks_are_cut_into_equal_ranges():
    partitions = partitions_for([100, 0, 60], 3)
    assert [rows_in(pieces) for pieces in partitions] == [53, 53, 54]
    assert [len(pieces) for pieces in partitions] == [1, 2, 1]
    whole = partitions_for([100, 0, 60], 2)
    assert [piece.group for (piece,) in whole] == [0, 2]


@quick
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any))
def test_ranks_give_their_rows_evenly_and_exactly_as_many_as_asked(rows_by_rank):
    places = sorted(
        ((2 * row + 1) / rows, rank)
        for rank, rows in enumerate(rows_by_rank)
        for row in range(rows)
    )
    expected = [0] * len(rows_by_rank)
    assert rows_so_far(rows_by_rank, 0) == expected
    for seen, (_, rank) in enumerate(places, start=1):
        expected[rank] += 1
        assert rows_so_far(rows_by_rank, seen) == expected


@quick
@given(st.integers(1, 5000), st.integers(1, 50))
def test_a_number_of_row_groups_is_met_exactly_and_evenly(rows, partitions):
    if partitions > rows:
        with pytest.raises(ValueError, match=rf"partitions={partitions}\b.* {rows:,} rows"):
            fixed_number(rows, partitions)
        return
    sizes = fixed_number(rows, partitions)
    assert len(sizes) == partitions
    assert sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1


def test_a_multiple_of_the_ranks_is_served_evenly_unless_the_last_row_group_is_short():
    assert served_evenly(fixed_number(328_521, 8)) == [1, 2, 4, 8]
    assert served_evenly([10, 10, 10, 3]) == [1]
    assert served_evenly([2, 2, 1, 1]) == [1, 2, 4]


@quick
@given(st.integers(1, 10_000), st.integers(1, 40), st.integers(1, 16))
def test_the_suggested_number_serves_the_ranks_evenly(rows, partitions, world_size):
    suggested = suggested_partitions(rows, partitions, world_size)
    assert suggested % world_size == 0
    if rows >= 4 * world_size:
        assert suggested >= 4 * world_size
    if rows >= world_size:
        assert world_size in served_evenly(fixed_number(rows, suggested))
