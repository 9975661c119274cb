"""``compare``: the same training in several modes, measured in one run, like for like.

Same global batch, same first weights, same order of rows, same steps; warm-up left out; each
measurement in fresh processes; the modes take turns, round after round. What is counted (memory,
bytes, communication) comes from further runs that are not timed, because counting takes time.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from multigpu.ranks import run_ranks
from multigpu.ranks.results import Results
from multigpu.scaling.communication import all_reduce_share, bytes_between_ranks
from multigpu.scaling.machine import Machine
from multigpu.scaling.measuring import Sample, measure
from multigpu.scaling.plan import MODES, Candidate, in_turn, plan_of
from multigpu.scaling.results import Comparison, Row, Settings
from multigpu.scaling.stopwatch import Stopwatch
from multigpu.scaling.workload import Workload

METERED = 2  # steps with the meters on; the optimizer's state is there from the first one on
TRACED = 10  # steps with the trace on


def compare(
    workload: Workload,
    *,
    modes: Sequence[str] = MODES,
    gpus: Sequence[int] = (1, 2),
    steps: int = 20,
    warmup: int = 5,
    repeats: int = 5,
    threads: int | None = None,
    count: bool = True,
    tell: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Measure every mode on every number of GPUs, `repeats` times in turn.

    Where there are too few real GPUs, dp gets virtual ones and the ranks of ddp compute on the CPU;
    the result says so. Each GPU that the CPU plays has `threads` threads; by default the cores are
    divided by the largest number of GPUs, so that every row has the same GPU. Without `count`
    memory, bytes and communication are not looked at, which saves a few runs. `tell` hears what is
    being done. Raises ValueError for what cannot be compared, RankError where training fails.
    """
    if repeats < 1:
        raise ValueError(f"repeats={repeats}: measure at least once; 5 give a median and a spread")
    if threads is not None and threads < 1:
        raise ValueError(f"threads={threads}: each GPU that the CPU plays needs one at least")
    batch_size = workload.config.batch_size
    plan = plan_of(modes, gpus, batch_size=batch_size)
    Stopwatch(workload.train, steps=steps, warmup=warmup).refuse_batch(batch_size)
    machine = Machine.here()
    most = max(candidate.gpus for candidate in plan.candidates)
    threads = threads or max(1, machine.cores // most)
    ready = workload.ready()
    untested = replace(ready, test=None)  # every round trains the same: one evaluation is enough
    samples: dict[Candidate, list[list[Sample]]] = {each: [] for each in plan.candidates}
    for number, candidate in in_turn(plan.candidates, repeats):
        tell(f"round {number + 1} of {repeats}: {candidate}")
        trained = ready if number == repeats - 1 else untested
        samples[candidate].append(list(run(candidate, trained, steps, warmup, threads=threads)))
    rows = []
    for candidate, rounds in samples.items():
        counted = {}
        if count:
            tell(f"counting: {candidate}")
            counted = counts(candidate, untested, warmup=warmup, threads=threads)
        rows.append(row_of(candidate, rounds, where=machine.where(candidate), counted=counted))
    settings = Settings(
        work=workload.name,
        date=datetime.date.today().isoformat(),
        batch_size=batch_size,
        steps=steps,
        warmup=warmup,
        seed=workload.config.seed,
        threads=threads,
    )
    return Comparison(settings, machine, tuple(rows), plan.left_out)


def run(
    candidate: Candidate,
    workload: Workload,
    steps: int,
    warmup: int,
    *,
    threads: int,
    meters: bool = False,
    trace: bool = False,
) -> Results:
    """One measurement in processes of its own; a Sample from each."""

    def work() -> Sample:
        return measure(candidate, workload, steps, warmup, meters=meters)

    return run_ranks(
        work,
        candidate.ranks,
        timeout=None,  # a long measurement is not a hang
        backend=None if candidate.mode == "ddp" else "gloo",
        threads=threads,
        trace=trace,
        show=False,
    )


def row_of(
    candidate: Candidate, rounds: list[list[Sample]], *, where: str, counted: dict[str, Any]
) -> Row:
    """A candidate's row. The slowest rank's time counts: the others wait for it."""
    return Row(
        candidate,
        where=where,
        rounds=tuple(max(sample.step_seconds for sample in ranks) for ranks in rounds),
        figures=rounds[-1][0].figures,
        first=median(max(sample.first_seconds for sample in ranks) for ranks in rounds),
        **counted,
    )


def counts(
    candidate: Candidate, workload: Workload, *, warmup: int, threads: int
) -> dict[str, Any]:
    """What a candidate holds and sends, from runs that are not timed."""
    metered = run(candidate, workload, METERED, 0, threads=threads, meters=True)
    peaks = tuple(peak for sample in metered for peak in sample.peak_bytes)
    copied = metered[0].copied_bytes
    counted: dict[str, Any] = {"peak_bytes": peaks}
    if candidate.mode == "dp" and copied is not None:
        counted["traffic"] = copied // METERED
    if candidate.ranks > 1:
        traced = run(candidate, workload, TRACED, warmup, threads=threads, trace=True)
        windows = [sample.window for sample in traced]
        counted["communication"] = all_reduce_share(traced.trace, windows)
        counted["traffic"] = bytes_between_ranks(traced.trace, windows[0], steps=TRACED)
    return counted
