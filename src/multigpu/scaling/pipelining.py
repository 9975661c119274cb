"""What a pipeline's schedule costs: the bubble, and when each action starts and ends.

    from multigpu.scaling.pipelining import bubble, steps_of
    bubble(4, micro_batches=8)                 # 0.27 of the time
    table = [[("forward", 0), ("backward", 0)], [("forward", 0), ("backward", 0)]]
    steps_of(table, forward=1.0, backward=2.0)

A schedule is a table: row r is what rank r does, in its order. An action is ("forward", m) or
("backward", m) for micro-batch m. A rank with several stages also says which: ("forward", m, 3).
The picture of the steps is multigpu.pictures.schedule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multigpu.scaling.schedule_table import KINDS, Action, homes, needs_of, who_waits, whole
from multigpu.scaling.speed_up import at_least_one

Costs = float | Sequence[float] | Mapping[int, float]  # of every stage, or of each


@dataclass(frozen=True)
class PipelineStep:
    """An action and its time: `start` and `end` in seconds, or in whatever the costs were in."""

    rank: int
    kind: str
    micro_batch: int
    start: float
    end: float
    stage: int

    def __str__(self) -> str:
        stage = "" if self.stage == self.rank else f" of stage {self.stage}"
        return f"rank {self.rank}: {self.kind} {self.micro_batch}{stage}"


def bubble(stages: int, micro_batches: int, *, stages_per_rank: int = 1) -> float:
    """The share of the time in which a rank idles: (p - 1) / (v · m + p - 1).

    For `stages` ranks with stages that take equally long, GPipe and 1F1B alike; m is the number of
    micro-batches, v the stages that each rank has in an interleaved schedule. Sources: Huang et al.
    2019, arXiv 1811.06965; Narayanan et al. 2021, arXiv 2104.04473 (which gives it relative to the
    ideal time: (p - 1) / (v · m)).
    """
    at_least_one(stages)
    for name, count in {"micro_batches": micro_batches, "stages_per_rank": stages_per_rank}.items():
        if count < 1:
            raise ValueError(f"{name}={count}: there is at least one")
    return (stages - 1) / (stages_per_rank * micro_batches + stages - 1)


def steps_of(
    schedule: Sequence[Sequence[Action]],
    *,
    forward: Costs = 1.0,
    backward: Costs = 2.0,
    sending: float = 0.0,
) -> tuple[PipelineStep, ...]:
    """When each action of a schedule starts and ends, if all are as long as said.

    `forward` and `backward` are the seconds of a micro-batch: one number for every stage, or one
    for each. What a stage computes reaches the next rank `sending` seconds later, and the rank
    works on meanwhile. Each rank does one thing at a time, in the order of its row, as soon as what
    it needs is there. Returns the steps in the order of their start.

    Raises ValueError for an action that is none or is there twice, and for a schedule in which
    every rank waits, with what each waits for.
    """
    rows = [[whole(action, rank) for action in row] for rank, row in enumerate(schedule)]
    clock = _Clock(rows, forward, backward, sending)
    while any(clock.advance(rank) for rank in range(len(rows))):
        pass
    if clock.is_stuck:
        raise ValueError(who_waits(rows, clock.at, clock.done, clock.last_stage))
    return tuple(sorted(clock.done.values(), key=lambda step: (step.start, step.rank)))


class _Clock:
    """How far each rank of a simulated pipeline is."""

    def __init__(
        self, rows: list[list[Action]], forward: Costs, backward: Costs, sending: float
    ) -> None:
        self.rows = rows
        self.costs = {"forward": forward, "backward": backward}
        self.sending = sending
        self.last_stage = max((stage for *_, stage in homes(rows)), default=0)
        self.done: dict[Action, PipelineStep] = {}
        self.free = [0.0] * len(rows)  # when each rank has ended what it does
        self.at = [0] * len(rows)  # the action it comes to next

    @property
    def is_stuck(self) -> bool:
        """Whether an action is left."""
        return any(at < len(row) for at, row in zip(self.at, self.rows, strict=True))

    def advance(self, rank: int) -> bool:
        """Let a rank do all that it has what it needs for; whether that was anything."""
        begin = self.at[rank]
        for action in self.rows[rank][begin:]:
            needs = list(needs_of(action, self.last_stage))
            if not all(need in self.done for need in needs):
                break
            kind, micro_batch, stage = action
            arrivals = (self._arrival(self.done[need], rank) for need in needs)
            start = max([self.free[rank], *arrivals])
            end = start + _cost(self.costs[kind], stage)
            self.done[action] = PipelineStep(rank, kind, micro_batch, start, end, stage)
            self.free[rank] = end
            self.at[rank] += 1
        return self.at[rank] > begin

    def _arrival(self, step: PipelineStep, rank: int) -> float:
        return step.end if step.rank == rank else step.end + self.sending


def _cost(costs: Costs, stage: int) -> float:
    return float(costs) if isinstance(costs, int | float) else float(costs[stage])


def idle_share(steps: Iterable[PipelineStep]) -> float:
    """The share of all ranks' time, from the first start to the last end, in which nobody computes.

    For equally long stages it is the bubble. It takes recorded steps as well as predicted ones.
    """
    spans = [(step.rank, step.start, step.end) for step in steps]
    if not spans:
        return 0.0
    total = max(end for *_, end in spans) - min(start for _, start, _ in spans)
    ranks = len({rank for rank, *_ in spans})
    return 1 - sum(end - start for _, start, end in spans) / (ranks * total)


def most_in_flight(steps: Iterable[PipelineStep]) -> list[int]:
    """For each rank the largest number of micro-batches whose activations it holds at once.

    That is, forward has begun and backward has not ended. An interleaved rank counts each of its
    stages by itself.
    """
    changes: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for step in steps:
        change = (step.start, 1) if step.kind == "forward" else (step.end, -1)
        changes[step.rank].append(change)
    most = []
    for rank in sorted(changes):
        held = peak = 0
        for _, more in sorted(changes[rank]):  # at the same moment: first what ends
            held += more
            peak = max(peak, held)
        most.append(peak)
    return most


def recorded_steps(spans: Iterable[Any]) -> tuple[PipelineStep, ...]:
    """Steps from the spans of a trace that are named `forward 3` or `backward 3`.

    A third word is the stage; else it is the rank's number. Time begins with the first of them.
    """
    found = []
    for span in spans:
        kind, *numbers = str(span.label).split()
        if kind in KINDS and numbers and all(number.isdigit() for number in numbers):
            micro_batch, stage, *_ = (*map(int, numbers), span.rank)
            found.append(PipelineStep(span.rank, kind, micro_batch, span.start, span.end, stage))
    first = min((step.start for step in found), default=0.0)
    moved = (
        PipelineStep(s.rank, s.kind, s.micro_batch, s.start - first, s.end - first, s.stage)
        for s in found
    )
    return tuple(sorted(moved, key=lambda step: (step.start, step.rank)))
