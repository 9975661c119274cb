"""The formulas of speed and traffic, against numbers that can be worked out by hand."""

import pytest

from multigpu.scaling.formulas import (
    all_reduce_bytes,
    all_reduce_seconds,
    amdahl,
    communication_share,
    efficiency,
    gustafson,
    speed_up,
    step_seconds,
)


def test_half_the_time_is_twice_as_fast_and_half_of_what_four_gpus_could_do():
    assert speed_up(one=10.0, many=5.0) == 2.0
    assert efficiency(2.0, 4) == 0.5


def test_amdahl_has_a_ceiling_of_one_by_the_serial_share():
    assert amdahl(0.0, 8) == 8
    assert amdahl(1.0, 8) == 1
    assert amdahl(0.1, 2) == pytest.approx(1 / 0.55)
    assert amdahl(0.1, 10**9) == pytest.approx(10)


def test_gustafson_lets_the_work_grow_with_the_gpus():
    assert gustafson(0.0, 8) == 8
    assert gustafson(1.0, 8) == 1
    assert gustafson(0.1, 11) == 10


@pytest.mark.parametrize(("ranks", "factor"), [(1, 0), (2, 1.0), (4, 1.5), (8, 1.75)])
def test_each_rank_of_a_ring_sends_less_than_twice_the_gradients(ranks, factor):
    assert all_reduce_bytes(ranks, 1000) == 1000 * factor


def test_a_ring_of_four_ranks_waits_for_six_messages():
    alone = all_reduce_seconds(4, 4e9, bandwidth=12.5e9)
    assert alone == pytest.approx(0.48)
    assert all_reduce_seconds(4, 4e9, bandwidth=12.5e9, latency=1e-3) == pytest.approx(alone + 6e-3)


def test_a_step_divides_the_computing_and_not_the_bytes():
    link = {"gradients": 8.0, "bandwidth": 8.0}  # an all-reduce of 2 ranks takes 1 s
    assert step_seconds(4.0, 1, **link) == 4.0
    assert step_seconds(4.0, 2, **link) == 3.0
    assert communication_share(4.0, 2, **link) == pytest.approx(1 / 3)
    assert step_seconds(1.0, 2, **link) > 1.0, "more GPUs must be able to be slower"


def test_what_travels_during_the_computing_is_free():
    link = {"gradients": 8.0, "bandwidth": 8.0}
    assert step_seconds(4.0, 2, **link, overlap=0.25) == 2.5
    assert step_seconds(4.0, 2, **link, overlap=1.0) == 2.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: speed_up(one=0.0, many=1.0),
        lambda: speed_up(one=1.0, many=-1.0),
        lambda: efficiency(1.0, 0),
        lambda: amdahl(1.5, 2),
        lambda: gustafson(-0.1, 2),
        lambda: all_reduce_bytes(0, 1),
        lambda: all_reduce_seconds(2, 1, bandwidth=0),
        lambda: step_seconds(1.0, 2, gradients=1, bandwidth=1, overlap=2),
    ],
)
def test_numbers_that_cannot_be_are_refused_with_the_number(call):
    with pytest.raises(ValueError, match=r"\d"):
        call()
