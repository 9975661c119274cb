"""One training step with `run` of solutions/pipeline.py and with PyTorch's own schedules.

Run with `make bench`.  Both run the same stages on the same micro-batches in the same order.
Medians are printed, and ratios to PyTorch's; nothing is asserted about times.  What is asserted is
that all of them end with the same weights.
"""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from multigpu import run_ranks
from multigpu.ranks import rank_device

from .interleaved import table, times_in_turn

SOLUTIONS = str(Path(__file__).resolve().parents[2] / "solutions")
WIDTH, DEPTH, ROWS = 1024, 8, 256  # 8.4 million parameters in all stages; rows of the whole batch
MICRO_BATCHES = 8
ROUNDS = 21
loss_fn = nn.functional.mse_loss
THEIRS = {"PyTorch's GPipe": ScheduleGPipe, "PyTorch's 1F1B": Schedule1F1B}


def steps_in_turn():
    """On each rank: the seconds of a step in every way, and the weights at the end."""
    sys.path.append(SOLUTIONS)
    import pipeline as by_hand  # type: ignore[import-not-found]

    ranks = dist.get_world_size()
    runs = {name: Theirs(schedule) for name, schedule in THEIRS.items()}
    for name in ("gpipe", "one_f_one_b"):
        order = getattr(by_hand, name)(ranks, MICRO_BATCHES)
        runs[f"{name} and run"] = ByHand(by_hand.run, order)
    candidates = {name: run.step for name, run in runs.items()}
    times = times_in_turn(candidates, rounds=ROUNDS, meet=dist.barrier)
    weights = {
        name: nn.utils.parameters_to_vector(run.stage.parameters()).detach().cpu()
        for name, run in runs.items()
    }
    return times, weights


class Steps:
    """This rank's stage with an optimizer; every way begins with the same weights."""

    def __init__(self):
        self.device = rank_device()
        torch.manual_seed(dist.get_rank())
        layers = DEPTH // dist.get_world_size()
        parts = [part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self.stage = nn.Sequential(*parts).to(self.device)
        self.optimizer = torch.optim.SGD(self.stage.parameters(), lr=0.1)
        torch.manual_seed(1000)
        self.inputs, self.targets = torch.rand(2, ROWS, WIDTH, device=self.device)

    def step(self):
        self.optimizer.zero_grad()
        self.backward()
        self.optimizer.step()


class ByHand(Steps):
    def __init__(self, run, order):
        super().__init__()
        chunks = self.inputs.chunk(MICRO_BATCHES), self.targets.chunk(MICRO_BATCHES)
        self.run, self.order, self.parts = run, order, list(zip(*chunks, strict=True))

    def backward(self):
        self.run(self.stage, self.order, self.parts, loss_fn)


class Theirs(Steps):
    def __init__(self, schedule):
        super().__init__()
        rank, ranks = dist.get_rank(), dist.get_world_size()
        stage = PipelineStage(self.stage, rank, ranks, self.device)
        self.schedule = schedule(stage, MICRO_BATCHES, loss_fn=loss_fn)
        self.is_first, self.is_last = rank == 0, rank == ranks - 1

    def backward(self):
        inputs = (self.inputs,) if self.is_first else ()
        self.schedule.step(*inputs, target=self.targets if self.is_last else None)


@pytest.mark.parametrize("world", [2, 4])
def test_a_training_step(world):
    if 0 < torch.cuda.device_count() < world:
        pytest.skip(f"{world} ranks need as many GPUs, or none")
    results = run_ranks(steps_in_turn, world, trace=False, show=False, timeout=300)
    for _, weights in results:
        for name, ended_with in weights.items():
            torch.testing.assert_close(ended_with, weights["PyTorch's GPipe"], msg=name)
    title = f"one step, {MICRO_BATCHES} micro-batches, {world} stages, {results.backend}"
    for pair in (("PyTorch's GPipe", "gpipe and run"), ("PyTorch's 1F1B", "one_f_one_b and run")):
        times = {name: results[0][0][name] for name in pair}
        print(table(title, times, against=pair[0]))
