"""Record what the pipeline lesson shows of cutting: equal layer counts, memory or measured time.

    python docs/measurements/cutting.py     writes docs/reference/cutting/balance.csv

A CNN, a small GPT, the same with a large vocabulary and a small ViT are measured once and cut into
2 and 4 stages in each of the three ways. Two stages also train, on two gloo ranks with PyTorch's
1F1B schedule. Ways that found the same cut are one and share their figure; the others are run in
turn, forwards and backwards, so that a busy machine slows all alike. About five minutes of two free
cores. The page shows what is stored.

There is one line per model, number of stages and way, with these columns:

    model                  LargeCNN, SmallGPT, SmallGPT with 2048 words, or SmallViT
    stages                 2 or 4
    balance                layers, memory or time
    cut before             the first module of each stage but the first, separated by spaces
    ms of each stage       forward and backward of a micro-batch, measured piece by piece
    MB of each stage       weights, gradients, Adam's state, activations in flight (10**6 bytes)
    predicted ms per step  for 8 micro-batches, without optimizer and loss
    predicted bubble       the share of a step in which a stage waits
    measured ms per step   the median of all rounds; empty where it was not run
    against time           measured step by that of balance=time: the median of the rounds' ratios
"""

import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional as F
from writer import write

from multigpu import run_ranks
from multigpu.training import cut_points
from multigpu.training.models import LargeCNN, SmallGPT, SmallViT, next_byte_loss
from multigpu.training.partition import stages_at

MICRO_BATCHES, ROUNDS, WARM_UP = 8, 40, 2  # rounds: an even number, each order as often
WORDS = 2048  # so many that their scores cost about as much as all layers, as in real models
BALANCES = ("layers", "memory", "time")


def models() -> dict[str, tuple[nn.Module, torch.Tensor, torch.Tensor, Any]]:
    """Each model with the inputs and targets of a micro-batch, and its loss."""
    torch.manual_seed(0)
    images, digits = torch.rand(32, 1, 8, 8), torch.randint(0, 10, (32,))
    text, words = torch.randint(0, 256, (8, 65)), torch.randint(0, WORDS, (8, 65))
    large = SmallGPT(vocabulary=WORDS)
    return {
        "LargeCNN": (LargeCNN(), images, digits, F.cross_entropy),
        "SmallGPT": (SmallGPT(), text[:, :-1], text[:, 1:], next_byte_loss),
        f"SmallGPT with {WORDS} words": (large, words[:, :-1], words[:, 1:], next_byte_loss),
        "SmallViT": (SmallViT(), images, digits, F.cross_entropy),
    }


def measured(name: str, places: dict[str, tuple[int, ...]]) -> dict[str, list[float]]:
    """The seconds of a step, round by round, of each way; the same cut is measured once."""
    cuts = list(dict.fromkeys(places.values()))
    settings = {"trace": False, "show": False, "timeout": 300}
    taken = run_ranks(steps_in_turn, 2, name, cuts, **settings)[0]
    return {balance: taken[cuts.index(cut)] for balance, cut in places.items()}


def steps_in_turn(name: str, cuts: list[tuple[int, ...]]) -> list[list[float]]:
    """On each of the ranks: the seconds of a step of 8 micro-batches, each cut in its turn."""
    model, inputs, targets, loss_fn = models()[name]
    rank, ranks = dist.get_rank(), dist.get_world_size()
    schedules = []
    for places in cuts:
        stage = stages_at(model, (inputs,), places)[rank]
        piece = PipelineStage(stage, rank, ranks, torch.device("cpu"))
        schedules.append(Schedule1F1B(piece, MICRO_BATCHES, loss_fn=loss_fn))
    given = (torch.cat([inputs] * MICRO_BATCHES),) if rank == 0 else ()
    target = torch.cat([targets] * MICRO_BATCHES) if rank == ranks - 1 else None
    taken: list[list[float]] = [[] for _ in cuts]
    for number in range(WARM_UP + ROUNDS):
        # Who comes after a larger one finds other caches: so each comes before and after each.
        for turn in range(len(cuts))[:: 1 if number % 2 else -1]:
            dist.barrier()
            began = time.perf_counter()
            schedules[turn].step(*given, target=target, return_outputs=False)
            dist.barrier()
            taken[turn].append(time.perf_counter() - began)
    return [seconds[WARM_UP:] for seconds in taken]


def lines_of(name: str) -> list[dict[str, Any]]:
    """All lines of one model."""
    model, inputs, _, _ = models()[name]
    points = cut_points(model, inputs, repeats=10)
    lines = []
    for count in (2, 4):
        ways = {b: points.cut(count, balance=b, micro_batches=MICRO_BATCHES) for b in BALANCES}
        places = {balance: stages.places for balance, stages in ways.items()}
        taken = measured(name, places) if count == 2 else {}
        lines += [line_of(name, balance, stages, taken) for balance, stages in ways.items()]
    return lines


def line_of(name: str, balance: str, stages: Any, taken: dict[str, list[float]]) -> dict[str, Any]:
    """One line: what was predicted, and what was measured where it was run."""
    steps = stages.points.program.training.steps
    begins = [next((s.module for s in steps[p:] if s.module), "?") for p in stages.places[1:-1]]
    mine, best = taken.get(balance, []), taken.get("time", [])
    ratios = [one / other for one, other in zip(mine, best, strict=True)]
    return {
        "model": name,
        "stages": len(stages),
        "balance": balance,
        "cut before": " ".join(begins),
        "ms of each stage": " ".join(f"{1e3 * cost.seconds:.2f}" for cost in stages.costs),
        "MB of each stage": " ".join(f"{cost.memory / 1e6:.2f}" for cost in stages.costs),
        "predicted ms per step": f"{1e3 * stages.predicted_step(MICRO_BATCHES):.1f}",
        "predicted bubble": f"{stages.bubble(MICRO_BATCHES):.3f}",
        "measured ms per step": f"{1e3 * statistics.median(mine):.1f}" if mine else "",
        "against time": f"{statistics.median(ratios):.3f}" if ratios else "",
    }


if __name__ == "__main__":
    torch.set_num_threads(1)  # like a rank
    every = (line for name in models() for line in lines_of(name))
    write("cutting/balance.csv", f"gloo on the CPU, {MICRO_BATCHES} micro-batches", every)
