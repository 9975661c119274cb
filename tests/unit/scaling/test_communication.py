"""Shares of time and bytes, read from made-up traces."""

import pytest

from multigpu.ranks.trace import Call, Trace
from multigpu.scaling.formulas import ring_bytes, sent_by_kind
from multigpu.scaling.measuring import all_reduce_share, bytes_between_ranks, length_of_union


def call(rank, number, begin, end, *, op="all_reduce", size=100):
    frame = {"id": number, "op": op, "via": op, "group": "0", "members": (0, 1), "nth": number,
             "bytes": size, "numel": size // 4, "thread": 1, "is_async": True, "file": "a.py",
             "line": 1, "function": "f", "time": begin}  # fmt: skip
    heard = Call.of(rank, frame)
    return heard.heard({"phase": "completed", "time": end}) if end is not None else heard


def test_the_share_is_the_mean_over_ranks_and_overlapping_calls_count_once():
    calls = [call(0, 1, 1.0, 3.0), call(0, 2, 2.0, 4.0), call(1, 1, 1.0, 2.0)]
    trace = Trace(calls, world_size=2)
    assert all_reduce_share(trace, [(0.0, 10.0), (0.0, 10.0)]) == pytest.approx((0.3 + 0.1) / 2)


def test_only_the_window_counts_and_a_call_that_never_ends_lasts_to_its_end():
    calls = [call(0, 1, 0.0, 6.0), call(0, 2, 9.0, None), call(1, 1, 20.0, 30.0)]
    trace = Trace(calls, world_size=2)
    assert all_reduce_share(trace, [(5.0, 10.0), (5.0, 10.0)]) == pytest.approx((0.4 + 0.0) / 2)


def test_other_collectives_are_no_gradients():
    calls = [call(0, 1, 0.0, 5.0, op="broadcast"), call(1, 1, 0.0, 5.0, op="broadcast")]
    trace = Trace(calls, world_size=2)
    assert all_reduce_share(trace, [(0.0, 10.0)] * 2) == 0
    assert bytes_between_ranks(trace, (0.0, 10.0), steps=1) == 0


def test_bytes_are_those_of_a_ring_per_step_of_the_window():
    early = call(0, 1, 0.0, 1.0, size=10**6)
    inside = [call(0, number, 1.0 + number, 2.0 + number, size=800) for number in (1, 2, 3, 4)]
    others = [call(1, number, 1.0 + number, 2.0 + number, size=800) for number in (1, 2, 3, 4)]
    trace = Trace([early, *inside, *others], world_size=2)
    assert bytes_between_ranks(trace, (1.5, 9.0), steps=2) == 2 * (2 - 1) * 1600


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather():
    whole, part = call(0, 1, 0.0, 1.0, size=800), call(0, 2, 0.0, 1.0, op="all_gather", size=400)
    halved = call(0, 3, 0.0, 1.0, op="reduce_scatter", size=800)
    assert ring_bytes(whole) == ring_bytes(part) + ring_bytes(halved) == 800
    trace = Trace([whole, part, halved], world_size=2)
    assert all_reduce_share(trace, [(0.0, 2.0), (0.0, 2.0)]) == pytest.approx(0.25)
    assert bytes_between_ranks(trace, (0.0, 2.0), steps=1) == 2 * 1600
    assert sent_by_kind(trace) == {"all_reduce": 800, "all_gather": 400, "reduce_scatter": 400}


def test_messages_of_all_ranks_count():
    sends = [call(rank, 1, 0.0, 1.0, op="send", size=100 + rank) for rank in (0, 1)]
    received = call(1, 2, 0.0, 1.0, op="recv", size=100)
    trace = Trace([*sends, received], world_size=2)
    assert bytes_between_ranks(trace, (0.0, 2.0), steps=1) == 201
    assert sent_by_kind(trace, 1) == {"send": 101}


@pytest.mark.parametrize(
    ("spans", "length"),
    [([], 0), ([(0, 2), (1, 3)], 3), ([(0, 4), (1, 2)], 4), ([(0, 2), (5, 6), (9, 8)], 3)],
)
def test_overlapping_spans_count_once(spans, length):
    assert length_of_union(spans) == length
