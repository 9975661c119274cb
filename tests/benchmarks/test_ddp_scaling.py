"""How much of the throughput of two independent processes DDP keeps on two ranks.

Run with `make bench`. Each rank trains a convolutional network on one core, in turn through the
Trainer with DDP, by hand without any communication, as an independent process does, and by hand
with nothing but one number summed over the ranks in each step. That the second is as fast as an
independent process is tried with two processes that know nothing of each other; the third shows
what it costs that in each step everybody waits for the slowest. Ratios are printed; nothing is
asserted about times. What a step sends is the same for few rows and for many.
"""

import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from multigpu import run_ranks
from multigpu.data.feeds import RowFeed
from multigpu.training.models import LargeCNN

from .interleaved import WARM_UP
from .ways_to_train import Epochs, FromFeed, TrainersEpochs, adamw, digits_for

WORLD, STEPS, ROUNDS, REPEATS = 2, 6, 10, 2  # STEPS in each round
MEASURED = {"trace": False, "show": False, "timeout": 900}


def in_turn(rows: int) -> list[list[float]]:
    """On each rank: its rows per second in every round, with DDP, waiting only, and alone."""
    data = digits_for(STEPS, batch_size=rows * WORLD)
    ways = [
        TrainersEpochs(LargeCNN(), data, batch_size=rows * WORLD),
        independent(dist.get_rank(), rows, backward=backward_and_meet),
        independent(dist.get_rank(), rows),
    ]
    rates: list[list[float]] = [[] for _ in ways]
    for _ in range(WARM_UP + ROUNDS):
        for kept, epoch in zip(rates, ways, strict=True):
            dist.barrier()
            kept.append(rate(epoch, rows))
    return [kept[WARM_UP:] for kept in rates]


def backward_and_meet(loss: torch.Tensor) -> None:
    """The backward pass; then all ranks wait for each other, and exchange next to nothing."""
    loss.backward()
    dist.all_reduce(torch.zeros(1))


def alone(number: int, rows: int) -> list[float]:
    """In a process that communicates with nobody: its rows per second in every round."""
    dist.destroy_process_group()
    epoch = independent(number, rows)
    return [rate(epoch, rows) for _ in range(WARM_UP + ROUNDS)][WARM_UP:]


def independent(number: int, rows: int, **how) -> Epochs:
    """The rows that rank `number` has with DDP, on a model that nobody else hears of."""
    model, batch_size = LargeCNN(), rows * WORLD
    data = digits_for(STEPS, batch_size=batch_size)
    feed = RowFeed(data, batch_size=batch_size, rank=number, world_size=WORLD)
    return Epochs(model, adamw(model), FromFeed(feed), plain=model, **how)


def rate(epoch, rows: int) -> float:
    """Rows per second of one epoch, by this process's own clock."""
    began = time.perf_counter()
    epoch()
    return STEPS * rows / (time.perf_counter() - began)


def together(rates) -> list[float]:
    """The rows per second of all processes, round by round."""
    return [sum(of_a_round) for of_a_round in zip(*rates, strict=True)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures cores of a CPU, not GPUs")
@pytest.mark.parametrize("rows", [64, 256, 1024])
def test_ddp_against_independent_processes(rows):
    print(f"\nLargeCNN on {WORLD} ranks with one core each, {rows} rows each: rows per second")
    for _ in range(REPEATS):
        results = run_ranks(in_turn, WORLD, rows, **MEASURED)
        with_ddp, waiting, without = (together(rates) for rates in zip(*results, strict=True))
        with ThreadPoolExecutor(WORLD) as pool:
            jobs = [pool.submit(run_ranks, alone, 1, i, rows, **MEASURED) for i in range(WORLD)]
            apart = together(job.result()[0] for job in jobs)
        print(
            f"  DDP {statistics.median(with_ddp):.0f}"
            f"   waiting {statistics.median(waiting):.0f}"
            f"   no communication {statistics.median(without):.0f}"
            f"   independent processes {statistics.median(apart):.0f}"
            f"   load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n"
            f"    waiting / no communication {quartiles(waiting, without)}"
            f"   DDP / waiting {quartiles(with_ddp, waiting)}"
            f"   DDP / no communication {quartiles(with_ddp, without)}"
        )


def quartiles(rates: list[float], others: list[float]) -> str:
    """The median of the rounds' ratios, and where half of them lie."""
    ratios = [one / other for one, other in zip(rates, others, strict=True)]
    low, ratio, high = statistics.quantiles(ratios, n=4)
    return f"{ratio:.3f} ({low:.2f} to {high:.2f})"
