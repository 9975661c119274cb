"""One training step with Zero1Optimizer of solutions/sharding.py, PyTorch's own, and plain DDP.

Run with `make bench`.  Medians are printed, and ratios to PyTorch's ZeroRedundancyOptimizer with
its DistributedDataParallel; nothing is asserted about times.  What is asserted is that all of them
end with the same weights, and how many numbers of optimizer state each rank holds.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from multigpu import run_ranks
from multigpu.ranks import rank_device

from .interleaved import table, times_in_turn

SOLUTIONS = str(Path(__file__).resolve().parents[2] / "solutions")
WIDTH, DEPTH, ROWS = 1024, 6, 32  # 6.3 million parameters; rows per rank
ROUNDS = 21
PYTORCH = "DDP + ZeroRedundancyOptimizer"
OPTIONS = {"lr": 1e-3}


def steps_in_turn():
    """On each rank: the seconds of a step in every way, the state held, and the last weights."""
    sys.path.append(SOLUTIONS)
    import sharding as by_hand  # type: ignore[import-not-found]

    ways = {
        PYTORCH: (
            DistributedDataParallel,
            lambda weights: ZeroRedundancyOptimizer(weights, torch.optim.Adam, **OPTIONS),
        ),
        "DDP + Adam": (
            DistributedDataParallel,
            lambda weights: torch.optim.Adam(weights, **OPTIONS),
        ),
        "Zero1Optimizer": (
            lambda model: model,  # its step averages the gradients, too
            lambda weights: by_hand.Zero1Optimizer(weights, torch.optim.Adam, **OPTIONS),
        ),
        "Zero2Optimizer": (
            lambda model: model,
            lambda weights: by_hand.Zero2Optimizer(weights, torch.optim.Adam, **OPTIONS),
        ),
    }
    runs = {name: Steps(wrap, make) for name, (wrap, make) in ways.items()}
    start = weights_of(runs[PYTORCH])
    times = times_in_turn(
        {name: run.step for name, run in runs.items()}, rounds=ROUNDS, meet=dist.barrier
    )
    state = {name: elements_of_state(run.optimizer) for name, run in runs.items()}
    weights = {name: weights_of(run) for name, run in runs.items()}
    return times, state, weights, start


class Steps:
    """A model of its own, with its optimizer; all begin with the same weights."""

    def __init__(self, wrap, make):
        torch.manual_seed(0)
        device = rank_device()
        layers = [part for _ in range(DEPTH) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self.model = wrap(nn.Sequential(*layers, nn.Linear(WIDTH, 10)).to(device))
        torch.manual_seed(1 + dist.get_rank())
        self.inputs = torch.randn(ROWS, WIDTH, device=device)
        self.targets = torch.randint(10, (ROWS,), device=device)
        self.optimizer = make(self.model.parameters())

    def step(self):
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(self.inputs), self.targets).backward()
        self.optimizer.step()


def weights_of(run: Steps) -> torch.Tensor:
    return nn.utils.parameters_to_vector(run.model.parameters()).detach().cpu()


def elements_of_state(optimizer) -> int:
    """How many numbers this rank's optimizer keeps, counters aside."""
    inner = getattr(optimizer, "_inner", None) or getattr(optimizer, "optim", optimizer)
    return sum(t.numel() for state in inner.state.values() for t in tensors(state.values()))


def tensors(values) -> Iterable[torch.Tensor]:
    return (each for each in values if isinstance(each, torch.Tensor) and each.dim())


@pytest.mark.parametrize("world", [2, 4])
def test_a_training_step(world):
    if 0 < torch.cuda.device_count() < world:
        pytest.skip(f"{world} ranks need as many GPUs, or none")
    results = run_ranks(steps_in_turn, world, trace=False, show=False, timeout=300)
    times, _, weights, start = results[0]
    moved = (weights[PYTORCH] - start).norm()
    for name, ended_with in weights.items():  # Adam blows up rounding
        assert (ended_with - weights[PYTORCH]).norm() < 0.1 * moved, name
    size = len(weights[PYTORCH])
    title = f"one step, {size / 1e6:.1f} million parameters, {world} ranks, {results.backend}"
    print(table(title, times, against=PYTORCH))
    for name in times:
        most = max(state[name] for _, state, _, _ in results)
        print(f"  {name:34}{most / size:9.2f} Ψ of optimizer state on the fullest rank")
        assert not name.startswith("Zero") or most < 2.1 * size / world
