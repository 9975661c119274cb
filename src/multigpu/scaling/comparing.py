"""``compare``: the same training in several modes, measured in one run, like for like.

Same global batch, same first weights, same order of rows, same steps; warm-up left out; each
measurement in fresh processes; the modes take turns, round after round. What is counted (memory,
bytes, communication) comes from further runs that are not timed, because counting takes time.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from multigpu.scaling.machine import Machine, load_here
from multigpu.scaling.measuring import Sample
from multigpu.scaling.plan import USUAL, Candidate, Plan, in_turn, plan_of
from multigpu.scaling.results import Comparison, Row, Settings
from multigpu.scaling.runs import Runs
from multigpu.scaling.stopwatch import Stopwatch
from multigpu.scaling.workload import Workload

Tell = Callable[[str], None]


def compare(
    workload: Workload,
    *,
    modes: Sequence[str] = USUAL,
    gpus: Sequence[int] = (1, 2),
    steps: int = 20,
    warmup: int = 5,
    repeats: int = 5,
    threads: int | None = None,
    count: bool = True,
    tell: Tell | None = None,
) -> Comparison:
    """Measure every mode on every number of GPUs, `repeats` times in turn.

    Where there are too few real GPUs, dp gets virtual ones and the ranks of ddp compute on the CPU;
    the result says so. Each GPU that the CPU plays has `threads` threads; by default the cores are
    divided by the largest number of GPUs, so that every row has the same GPU. Without `count`
    memory, bytes and communication are not looked at, which saves a few runs. `tell` hears what is
    being done. Raises ValueError for what cannot be compared, RankError where training fails.
    """
    plan = plan_of(modes, gpus, batch_size=workload.config.batch_size)
    refuse_numbers(workload, steps=steps, warmup=warmup, repeats=repeats, threads=threads)
    tell = tell or (lambda text: None)
    machine = Machine.here()
    most = max(candidate.gpus for candidate in plan.candidates)
    settings = Settings(
        work=workload.name,
        date=datetime.date.today().isoformat(),
        batch_size=workload.config.batch_size,
        steps=steps,
        warmup=warmup,
        seed=workload.config.seed,
        threads=threads or max(1, machine.cores // most),
        load=load_here(),
    )
    runs = Runs(workload.ready(), steps, warmup, settings.threads)
    samples = take_turns(runs, plan, repeats=repeats, tell=tell)
    counts = count_all(runs, plan, tell=tell) if count else {}
    rows = tuple(
        row_of(candidate, rounds, where=machine.where(candidate), **counts.get(candidate, {}))
        for candidate, rounds in samples.items()
    )
    return Comparison(settings, machine, rows, plan.left_out)


def refuse_numbers(
    workload: Workload, *, steps: int, warmup: int, repeats: int, threads: int | None
) -> None:
    """Raise ValueError for numbers that cannot be meant, before anything runs."""
    if repeats < 1:
        raise ValueError(f"repeats={repeats}: measure at least once; 5 give a median and a spread")
    if threads is not None and threads < 1:
        raise ValueError(f"threads={threads}: each GPU that the CPU plays needs one at least")
    watch = Stopwatch(workload.train, steps=steps, warmup=warmup)
    watch.refuse_batch(workload.config.batch_size)


def take_turns(
    runs: Runs, plan: Plan, *, repeats: int, tell: Tell
) -> dict[Candidate, list[list[Sample]]]:
    """For each candidate, for each round, what each of its ranks saw.

    Every round trains the same, so an evaluation in the last one is enough.
    """
    samples: dict[Candidate, list[list[Sample]]] = {each: [] for each in plan.candidates}
    for number, candidate in in_turn(plan.candidates, repeats):
        tell(f"round {number + 1} of {repeats}: {candidate}")
        last = number == repeats - 1
        samples[candidate].append(runs.timed(candidate, evaluate=last))
    return samples


def count_all(runs: Runs, plan: Plan, *, tell: Tell) -> dict[Candidate, dict[str, Any]]:
    """For each candidate memory, bytes and communication, from runs that are not timed."""
    counts = {}
    for candidate in plan.candidates:
        tell(f"counting: {candidate}")
        counts[candidate] = runs.counts(candidate)
    return counts


def row_of(
    candidate: Candidate, rounds: list[list[Sample]], *, where: str, **counted: object
) -> Row:
    """A candidate's row. The slowest rank's time counts: the others wait for it."""
    return Row(
        candidate,
        where=where,
        rounds=tuple(max(sample.step_seconds for sample in ranks) for ranks in rounds),
        figures=rounds[-1][0].figures,
        first=median(max(sample.first_seconds for sample in ranks) for ranks in rounds),
        **counted,  # type: ignore[arg-type]  # fields of a Row, from Runs.counts
    )
