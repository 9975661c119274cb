"""How much of the throughput of two independent processes DDP keeps on two ranks.

Run with `make bench`. Each rank trains a convolutional network on one core, in turn through the
Trainer with DDP, and by hand without any communication, as an independent process does. That this
is so is tried with two processes that know nothing of each other. Ratios are printed; nothing is
asserted about times. DDP waits for the slower rank in every step: on cores that others use, too
(the load is printed), it keeps less.
"""

import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from multigpu import run_ranks
from multigpu.data import digits
from multigpu.data.rows import RowFeed
from multigpu.training.models import LargeCNN

from .interleaved import WARM_UP
from .ways_to_train import Epochs, FromFeed, TrainersEpochs, adamw

WORLD, ROWS = 2, 64  # ranks, and rows of each rank in each step
ROUNDS, REPEATS = 21, 3
MEASURED = {"trace": False, "show": False, "timeout": 900}


def in_turn() -> tuple[list[float], list[float]]:
    """On each rank: its rows per second in every round, with DDP and without communication."""
    data = digits().train
    with_ddp = TrainersEpochs(LargeCNN(), data, batch_size=ROWS * WORLD)
    without = independent(rank=dist.get_rank())
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(WARM_UP + ROUNDS):
        for kept, epoch in zip(rates, (with_ddp, without), strict=True):
            dist.barrier()
            kept.append(rate(epoch, rows=len(data) / WORLD))
    return rates[0][WARM_UP:], rates[1][WARM_UP:]


def alone(rank: int) -> list[float]:
    """In a process that communicates with nobody: its rows per second in every round."""
    dist.destroy_process_group()
    epoch, rows = independent(rank=rank), len(digits().train) / WORLD
    return [rate(epoch, rows=rows) for _ in range(WARM_UP + ROUNDS)][WARM_UP:]


def independent(*, rank: int) -> Epochs:
    """The rows that this rank has with DDP, on a model that nobody else hears of."""
    model = LargeCNN()
    feed = RowFeed(digits().train, batch_size=ROWS * WORLD, rank=rank, world_size=WORLD)
    return Epochs(model, adamw(model), FromFeed(feed), plain=model)


def rate(epoch, *, rows: float) -> float:
    """Rows per second of one epoch, by this process's own clock."""
    began = time.perf_counter()
    epoch()
    return rows / (time.perf_counter() - began)


def together(rates) -> list[float]:
    """The rows per second of all processes, round by round."""
    return [sum(of_a_round) for of_a_round in zip(*rates, strict=True)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures cores of a CPU, not GPUs")
def test_ddp_against_independent_processes():
    print(f"\nLargeCNN on {WORLD} ranks, 1 core and {ROWS} rows each: rows per second")
    for _ in range(REPEATS):
        results = run_ranks(in_turn, WORLD, **MEASURED)
        with_ddp, without = (together(rates) for rates in zip(*results, strict=True))
        with ThreadPoolExecutor(WORLD) as pool:
            apart = list(pool.map(lambda rank: run_ranks(alone, 1, rank, **MEASURED)[0], (0, 1)))
        ratios = [one / other for one, other in zip(with_ddp, without, strict=True)]
        low, ratio, high = statistics.quantiles(ratios, n=4)
        print(
            f"  DDP {statistics.median(with_ddp):7.0f}"
            f"   no communication {statistics.median(without):7.0f}"
            f"   independent processes {statistics.median(together(apart)):7.0f}"
            f"   DDP / no communication {ratio:.3f} ({low:.2f} to {high:.2f})"
            f"   load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        )
