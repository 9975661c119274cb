"""One measurement, in the processes that make it.

Each runs in processes of its own, forked from a server that has imported torch and nothing else, so
all candidates begin alike: no warm caches, no memory that another run has left. ddp trains on the
ranks of `run_ranks`; single and dp on one such process that has left its group, so that it is a
process as python starts it.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import distributed as dist

from multigpu.gpus import current_machine, virtual_gpus
from multigpu.gpus.machine import VirtualMachine
from multigpu.ranks.memory import limited_memory
from multigpu.scaling.plan import ONE_PROCESS, Candidate
from multigpu.scaling.stopwatch import Stopwatch
from multigpu.scaling.workload import Workload
from multigpu.training.config import TrainConfig
from multigpu.training.modes import OF_PIPELINE
from multigpu.training.trainer import Trainer

NO_LIMIT = 2**50  # bytes: the meter shall count, not refuse
TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True)
class Sample:
    """What one process saw."""

    step_seconds: float  # the mean of the measured steps
    first_seconds: float  # of the very first step: what the warm-up leaves out
    window: tuple[float, float]  # of the measured steps, time.monotonic
    figures: dict[str, float]  # the evaluation after the last step
    peak_bytes: tuple[int, ...] = ()
    copied_bytes: int | None = None  # between devices, all steps together


def measure(
    candidate: Candidate, workload: Workload, steps: int, warmup: int, *, meters: bool = False
) -> Sample:
    """Train for `warmup + steps` steps and time the latter; every rank of a candidate calls it.

    `meters` counts memory and, under dp, the bytes between devices; counting takes time, so it is
    done in a run that is not timed.
    """
    with prepared(candidate), contextlib.ExitStack() as stack:
        peak = None
        if meters and candidate.mode != "dp":
            peak = stack.enter_context(limited_memory(NO_LIMIT, rank=rank_here()))
        watch = Stopwatch(workload.train, steps=steps, warmup=warmup)
        trainer = trainer_of(candidate, workload, watch)
        history = trainer.fit()
        return Sample(
            step_seconds=watch.seconds,
            first_seconds=watch.moments[1] - watch.moments[0],
            window=watch.window,
            figures=evaluation_in(history.last),
            peak_bytes=peaks_of_all_gpus(candidate) if peak is None else (peak(),),
            copied_bytes=copied_between_gpus() if meters else None,
        )


def trainer_of(candidate: Candidate, workload: Workload, data: Stopwatch) -> Trainer:
    """The Trainer of a candidate, on a copy of the workload's model."""
    config = replace(
        workload.config,
        mode=candidate.mode,
        gpus=candidate.gpus if candidate.mode == "dp" else None,
        **pipeline_settings(candidate, workload.config),
        epochs=1,
        max_steps=None,
        schedule="constant",
        warmup_steps=0,
        monitor="loss",
        patience=None,
        folder=None,
        progress=False,
    )
    return Trainer(
        copy.deepcopy(workload.model),  # type: ignore[arg-type]  # made by Workload.ready
        config,
        data,
        workload.test,
        loss_fn=workload.loss_fn,
        metrics=workload.metrics,
    )


def pipeline_settings(candidate: Candidate, config: TrainConfig) -> dict[str, Any]:
    """A pipeline's settings for a pipeline, with a micro-batch for each stage at least.

    The other modes refuse them.
    """
    if candidate.mode != "pipeline":
        return {name: TrainConfig.__dataclass_fields__[name].default for name in OF_PIPELINE}
    rounds = -(-config.micro_batches // candidate.gpus)
    return {"micro_batches": max(1, rounds) * candidate.gpus}


def evaluation_in(row: dict[str, float]) -> dict[str, float]:
    """The evaluation's figures of a history's row; the training loss where there is none."""
    figures = {
        name.removeprefix("eval_"): float(value)
        for name, value in row.items()
        if name.startswith("eval_")
    }
    return figures or {"loss": float(row["loss"])}


@contextlib.contextmanager
def prepared(candidate: Candidate) -> Iterator[None]:
    """This process as the candidate needs it: alone for single and dp; for dp, with its GPUs."""
    if candidate.mode not in ONE_PROCESS:
        yield
        return
    dist.destroy_process_group()
    for name in TORCHRUN:
        os.environ.pop(name, None)
    real = torch.cuda.device_count()
    if candidate.mode == "single" or real >= candidate.gpus:
        yield
        return
    with virtual_gpus(candidate.gpus, backing="cuda:0" if real else "cpu"):
        yield


def peaks_of_all_gpus(candidate: Candidate) -> tuple[int, ...]:
    """The most that each GPU of a dp run held; nothing for the other modes."""
    if candidate.mode != "dp":
        return ()
    return tuple(current_machine().memory(index).peak for index in range(candidate.gpus))


def copied_between_gpus() -> int | None:
    """Bytes that virtual GPUs have given each other so far; None where nobody counts."""
    machine = current_machine()
    if not isinstance(machine, VirtualMachine):
        return None
    return sum(move.bytes for move in machine.traffic if move.source != "cpu" != move.target)


def rank_here() -> int:
    """This process's rank; 0 outside of a group."""
    return dist.get_rank() if dist.is_initialized() else 0
