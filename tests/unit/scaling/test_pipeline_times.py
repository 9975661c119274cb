"""The bubble, and schedules simulated and recorded: against tables worked out by hand."""

import re
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn

from multigpu import run_ranks
from multigpu.ranks.stage_spans import WatchedStage
from multigpu.scaling.pipeline_times import (
    bubble,
    fastest_step,
    idle_share,
    most_in_flight,
    steps_of,
)


def gpipe(stages, micro_batches):
    ways = ("forward", "backward")
    return [[(way, m) for way in ways for m in range(micro_batches)] for _ in range(stages)]


def one_f_one_b(stages, micro_batches):
    rows = []
    for stage in range(stages):
        ahead = min(stages - stage, micro_batches)
        row = [("forward", m) for m in range(ahead)]
        for m in range(micro_batches):
            row.append(("backward", m))
            if m + ahead < micro_batches:
                row.append(("forward", m + ahead))
        rows.append(row)
    return rows


@pytest.mark.parametrize(
    ("stages", "micro_batches", "share"), [(1, 5, 0), (4, 1, 3 / 4), (4, 8, 3 / 11), (2, 1, 1 / 2)]
)
def test_the_bubble_grows_with_stages_and_shrinks_with_micro_batches(stages, micro_batches, share):
    assert bubble(stages, micro_batches) == pytest.approx(share)


@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (3, 7), (4, 4)])
def test_ranks_of_both_schedules_idle_as_the_formula_says(schedule, stages, micro_batches):
    steps = steps_of(schedule(stages, micro_batches), forward=1, backward=2)
    assert len(steps) == 2 * stages * micro_batches
    assert idle_share(steps) == pytest.approx(bubble(stages, micro_batches))
    assert max(step.end for step in steps) == pytest.approx(3 * (micro_batches + stages - 1))


def test_two_stages_and_two_micro_batches_as_worked_out_by_hand():
    steps = steps_of(gpipe(2, 2), forward=1, backward=2, sending=0.5)
    times = {(s.rank, s.kind, s.micro_batch): (s.start, s.end) for s in steps}
    assert times[1, "forward", 0] == (1.5, 2.5)
    assert times[1, "backward", 0] == (3.5, 5.5)
    assert times[0, "backward", 0] == (6.0, 8.0)
    assert times[0, "backward", 1] == (8.0, 10.0)


def test_one_f_one_b_holds_as_many_micro_batches_as_stages_follow():
    assert most_in_flight(steps_of(one_f_one_b(4, 8))) == [4, 3, 2, 1]
    assert most_in_flight(steps_of(gpipe(4, 8))) == [8, 8, 8, 8]


def test_the_slowest_stage_sets_the_pace():
    steps = steps_of(one_f_one_b(2, 10), forward=[1, 3], backward=[2, 6])
    assert max(step.end for step in steps) == pytest.approx(10 * 9 + 1 + 2)


def test_a_rank_with_two_stages_idles_less():
    row = [("forward", m, s) for s in (0, 2) for m in (0, 1)]
    row += [("backward", m, s) for s in (2, 0) for m in (0, 1)]
    interleaved = [row, [(kind, m, s + 1) for kind, m, s in row]]
    halves = steps_of(interleaved, forward=0.5, backward=1.0)
    assert idle_share(halves) == pytest.approx(bubble(2, 2, stages_per_rank=2))


def test_a_schedule_in_which_all_wait_is_refused_with_who_waits_for_what():
    crossed = [[("backward", 0), ("forward", 0)], [("forward", 0), ("backward", 0)]]
    with pytest.raises(ValueError, match=r"rank 0\b.*'backward', 0\b") as caught:
        steps_of(crossed)
    waiting = str(caught.value).partition("rank 1")[2]
    assert re.findall(r"'\w+', \d|stage \d", waiting) == ["'forward', 0", "'forward', 0", "stage 0"]


@pytest.mark.parametrize(
    ("table", "said"),
    [([[("forward", 0), ("forward", 0)]], "twice"), ([[("sideways", 0)]], "sideways")],
)
def test_what_is_no_schedule_is_refused(table, said):
    with pytest.raises(ValueError, match=said):
        steps_of(table)


MICRO_BATCHES = 4
recorded = partial(run_ranks, backend="gloo", show=False)


def interleaved(steps: int, shapes: bool) -> None:
    """Two ranks with two stages each."""
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B  # 3 s

    rank = dist.get_rank()
    part = torch.empty(2, 3, requires_grad=True)  # what each stage gets, and returns
    known: dict[str, Any] = {"input_args": part, "output_args": part} if shapes else {}
    stages: list[Any] = [
        PipelineStage(
            WatchedStage(nn.Linear(3, 3), micro_batches=MICRO_BATCHES, number=number),
            number,
            4,
            torch.device("cpu"),
            **known,
        )
        for number in (rank, rank + 2)
    ]
    schedule = ScheduleInterleaved1F1B(stages, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    batch = torch.rand(2 * MICRO_BATCHES, 3)
    for _ in range(steps):
        if rank == 0:
            schedule.step(batch)
        else:
            schedule.step(target=batch)


def test_an_interleaved_step_is_recorded_whole() -> None:
    step = fastest_step(recorded(interleaved, 2, 3, True).trace)
    done = Counter((each.kind, each.stage, each.micro_batch) for each in step)
    kinds = ("forward", "backward")
    assert done == Counter((k, s, m) for k in kinds for s in range(4) for m in range(MICRO_BATCHES))
    began = {(each.kind, each.stage, each.micro_batch): each.start for each in step}
    for stage in range(4):
        for m in range(MICRO_BATCHES):
            assert began["forward", stage, m] < began["backward", stage, m]
            if stage:
                assert began["forward", stage - 1, m] < began["forward", stage, m]
                assert began["backward", stage, m] < began["backward", stage - 1, m]


def test_numbers_that_a_rehearsal_has_shifted_are_refused() -> None:
    trace = recorded(interleaved, 2, 3, False).trace
    extra = sum(span.label.startswith("forward") for span in trace.spans) - 3 * 4 * MICRO_BATCHES
    if not extra:
        pytest.skip("this PyTorch tries its stages out without gradients or without numbers")
    with pytest.raises(ValueError, match=r"input_args.*output_args"):
        fastest_step(trace)
