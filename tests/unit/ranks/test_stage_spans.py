"""A watched stage computes what it did before, and its work is in the trace."""

import time
from typing import Any

import torch
from torch import Tensor, nn

from multigpu import run_ranks
from multigpu.ranks.stage_spans import WatchedStage

SLOW = 0.05  # seconds


class Slow(torch.autograd.Function):
    """Multiplies by 2, and takes its time in both directions."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        time.sleep(SLOW)
        return 2 * inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(SLOW)
        return 2 * gradient


class TwoResults(nn.Module):
    """A stage with weights before what is slow; only its second result needs a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(3, 3)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows, Slow.apply(self.weights(rows))


def two_steps_of_two() -> list[Tensor | None]:
    stage = WatchedStage(TwoResults(), micro_batches=2, number=3)
    rows = torch.ones(4, 3)
    for _ in range(2):
        stage.zero_grad()
        results = [stage(part)[1].sum() for part in rows.split(2)]
        for result in reversed(results):
            result.backward()
    with torch.no_grad():
        stage(rows)
    return [parameter.grad for parameter in stage.parameters()]


def test_each_forward_and_backward_in_training_is_a_span_with_its_micro_batch_and_stage() -> None:
    ran = run_ranks(two_steps_of_two, 1, show=False)
    spans = ran.trace.spans
    step = ["forward 0 3", "forward 1 3", "backward 1 3", "backward 0 3"]
    assert [span.label for span in spans] == [*step, *step]
    assert all(span.end - span.start >= SLOW for span in spans)
    weight, bias = ran[0]
    torch.testing.assert_close(bias, torch.full((3,), 8.0))  # 4 rows, times 2
    torch.testing.assert_close(weight, torch.full((3, 3), 8.0))


def test_outside_of_a_trace_it_is_the_stage() -> None:
    plain = nn.Linear(2, 2)
    watched = WatchedStage(plain, micro_batches=1)
    rows = torch.ones(1, 2, requires_grad=True)
    result = watched(rows)
    assert result.equal(plain(rows))
    result.sum().backward()
    assert rows.grad is not None
