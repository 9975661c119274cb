"""Which cut is chosen: the slowest stage as fast as can be, within the memory, and its table."""

import dataclasses
import itertools
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from multigpu.training import cut_points
from multigpu.training.partition import Seconds, Stages


@pytest.fixture(scope="module")
def measured():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(8)))
    return cut_points(model, torch.randn(4, 32), repeats=1)


@pytest.fixture
def with_times(measured):
    """The same model, as if its layers took so many seconds, a third of it forward."""

    def of(*seconds):
        made_up = [Seconds(s / 3, s * 2 / 3) for s in seconds]
        return dataclasses.replace(measured, seconds=made_up)

    return of


def slowest(points, pieces):
    return max(cost.seconds for cost in Stages(points, points.cut(3).setting, pieces).costs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_other_cut_has_a_faster_slowest_stage(with_times, seed):
    torch.manual_seed(seed)
    points = with_times(*torch.rand(8).tolist())
    chosen = max(cost.seconds for cost in points.cut(3).costs)
    others = [slowest(points, (0, *cuts, 8)) for cuts in itertools.combinations(range(1, 8), 2)]
    assert chosen <= min(others) * 1.01


def test_each_balance_makes_its_own_equal(with_times):
    points = with_times(8, 1, 1, 1, 1, 1, 1, 2)
    assert points.cut(2, balance="time").pieces == (0, 1, 8)
    assert points.cut(2, balance="layers").pieces == (0, 4, 8)
    memory = [cost.memory for cost in points.cut(2, balance="memory").costs]
    assert max(memory) - min(memory) < max(memory) / 3


def test_a_memory_limit_moves_the_cut(with_times):
    points = with_times(8, 1, 1, 1, 1, 1, 1, 2)
    free = points.cut(2)
    limit = max(cost.memory for cost in free.costs) - 1
    tight = points.cut(2, memory=limit)
    assert tight.pieces != free.pieces
    assert all(cost.memory <= limit for cost in tight.costs)


def test_the_first_stages_hold_more_micro_batches(measured):
    stages = measured.cut(4, micro_batches=8)
    assert [cost.in_flight for cost in stages.costs] == [4, 3, 2, 1]
    stages = measured.cut(4, micro_batches=8, schedule="gpipe")
    assert [cost.in_flight for cost in stages.costs] == [8, 8, 8, 8]


@pytest.mark.parametrize(("stages", "each", "count"), [(6, 2, 6), (6, 2, 8), (8, 4, 4), (8, 4, 16)])
def test_interleaved_stages_hold_what_pytorchs_schedule_lets_them(measured, stages, each, count):
    from torch.distributed.pipelining import ScheduleInterleaved1F1B  # 3 s

    ranks = stages // each
    about = {"group_size": ranks, "group_rank": 0, "num_stages": stages, "has_backward": True}
    stand_ins = [
        SimpleNamespace(**about, stage_index=i * ranks, is_first=i == 0, is_last=False)
        for i in range(each)
    ]  # it asks stages for their numbers only
    begun, most = Counter(), Counter()
    for row in ScheduleInterleaved1F1B(stand_ins, count).pipeline_order.values():
        for action in filter(None, row):
            forward = action.computation_type.name == "FORWARD"
            begun[action.stage_index] += 1 if forward else -1
            most |= begun
    cut = measured.cut(stages, stages_per_rank=each, micro_batches=count)
    assert [cost.in_flight for cost in cut.costs] == [most[i] for i in range(stages)]


def test_memory_is_counted_to_the_byte(measured):
    stages = measured.cut(2, balance="layers", optimizer_state=2)
    for cost in stages.costs:
        weights = 4 * (32 * 32 + 32) * 4  # four layers of float32
        assert cost.weight_bytes == cost.gradient_bytes == weights
        assert cost.optimizer_bytes == 2 * weights
    kept = 4 * 32 * 4  # one (4, 32) of float32
    # What goes into each layer is kept, and what goes out of the stage.
    assert [cost.activation_bytes for cost in stages.costs] == [5 * kept, 4 * kept]


def test_equal_stages_have_the_bubble_of_the_formula(with_times):
    for schedule in ("1f1b", "gpipe"):
        stages = with_times(*[1.0] * 8).cut(4, schedule=schedule)
        for count in (1, 4, 16):
            assert stages.bubble(count) == pytest.approx(3 / (count + 3))
            assert stages.predicted_step(count) == pytest.approx((count + 3) * 2)


def test_interleaved_stages_have_the_bubble_of_the_formula(with_times):
    stages = with_times(*[1.0] * 8).cut(4, stages_per_rank=2, micro_batches=4)
    for count in (1, 4, 16):
        assert stages.bubble(count) == pytest.approx(1 / (2 * count + 1))
        assert stages.predicted_step(count) == pytest.approx((2 * count + 1) * 2)
    assert "a rank with 2 of the stages is predicted to wait 11%" in stages.table().title
    unequal = with_times(3, 1, 1, 1, 1, 1, 1, 1).cut(4, stages_per_rank=2, balance="layers")
    # Rank 0 has stages of 4 and 2 seconds, rank 1 two of 2, the half of which comes first and last.
    assert unequal.predicted_step(4) == pytest.approx(4 * 6 + 4 / 2)


def test_the_prediction_is_that_of_the_schedule_that_it_was_cut_for(measured):
    seconds = [Seconds(2, 1), Seconds(2, 1), *[Seconds(1, 2)] * 6]  # all equal, but not forward
    points = dataclasses.replace(measured, seconds=seconds)
    for schedule, waits in (("1f1b", 3 / 7), ("gpipe", 1 / 2)):
        stages = points.cut(4, schedule=schedule, balance="layers", micro_batches=4)
        assert stages.bubble(4) == pytest.approx(waits)
        assert f"{waits:.0%}" in stages.table().title


def test_the_table_has_a_line_per_stage_and_the_bubble(with_times):
    stages = with_times(*[0.001] * 8).cut(4, micro_batches=4)
    table = stages.table()
    assert len(table.rows) == 4
    assert table.rows[0][:4] == ("0", "0 … 1", "2,112", "2.00 ms")
    assert "43%" in table.title  # 3 / 7
    assert str(stages) == table.text()
    assert "<table>" in stages._repr_html_()


@pytest.mark.parametrize("begin", [30, 31])
def test_two_heavy_neighbors_among_many_layers_are_parted(begin):
    sizes = [8] * (begin + 1) + [1500] * 3 + [8] * (71 - begin)
    model = nn.Sequential(*itertools.starmap(nn.Linear, itertools.pairwise(sizes)))
    assert len(model) == 74
    points = cut_points(model, torch.randn(64, 8), repeats=2)
    assert points.cut(2).places[1] == begin + 2, points.seconds
