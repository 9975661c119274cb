"""One training step with the wrappers of solutions/distributed_data_parallel.py and PyTorch's own.

Run with `make bench`.  Medians are printed, and ratios to PyTorch's DistributedDataParallel;
nothing is asserted about times.
"""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from multigpu import run_ranks

from .interleaved import table, times_in_turn

SOLUTIONS = str(Path(__file__).resolve().parents[2] / "solutions")
WIDTH, DEPTH, ROWS = 1024, 6, 32  # 6.3 million parameters; rows per rank
ROUNDS = 21
PYTORCH = "PyTorch's DDP"


def steps_in_turn() -> tuple[dict[str, list[float]], int]:
    """On each rank: the seconds of one step with every wrapper, and the number of parameters."""
    sys.path.append(SOLUTIONS)
    import distributed_data_parallel as by_hand  # type: ignore[import-not-found]

    wrappers = {
        PYTORCH: nn.parallel.DistributedDataParallel,
        "PyTorch's DDP, gradients as views": lambda model: nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=True
        ),
        "NaiveDDP": by_hand.NaiveDDP,
        "OverlappedDDP": by_hand.OverlappedDDP,
        "BucketedDDP": by_hand.BucketedDDP,
        "no averaging at all": lambda model: model,
    }
    candidates = {name: stepper(wrap) for name, wrap in wrappers.items()}
    size = sum(p.numel() for p in mlp().parameters())
    return times_in_turn(candidates, rounds=ROUNDS, meet=dist.barrier), size


def stepper(wrap):
    """One step of a model of its own; all begin with the same weights."""
    torch.manual_seed(0)
    model = wrap(mlp())
    torch.manual_seed(1 + dist.get_rank())
    inputs, targets = torch.randn(ROWS, WIDTH), torch.randint(10, (ROWS,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sync = getattr(model, "sync_gradients", lambda: None)  # PyTorch's waits in backward

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        sync()
        optimizer.step()

    return step


def mlp() -> nn.Module:
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


@pytest.mark.parametrize("world", [2, 4])
def test_a_training_step(world):
    results = run_ranks(steps_in_turn, world, trace=False, show=False, timeout=300)
    times, size = results[0]
    title = f"one step, {size / 1e6:.1f} million parameters, {world} ranks, {results.backend}"
    print(table(title, times, against=PYTORCH))
