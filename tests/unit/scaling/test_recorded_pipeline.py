"""A recorded step is a whole one: each forward, then its backward, in every stage."""

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

from multigpu import run_ranks
from multigpu.ranks.stage_spans import WatchedStage
from multigpu.ranks.trace import Trace
from multigpu.scaling.pipelining import fastest_step

MICRO_BATCHES = 4
recorded = partial(run_ranks, backend="gloo", show=False)


def interleaved(steps: int, shapes: bool) -> None:
    """Two ranks with two stages each."""
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


def test_one_step_is_not_enough() -> None:
    with pytest.raises(ValueError, match=r"\b0 recorded"):
        fastest_step(Trace([], [], world_size=1))
