"""The times of a pipeline's schedule: the bubble, and when each action starts and ends.

    from multigpu.scaling.pipeline_times import bubble, steps_of
    bubble(4, micro_batches=8)                 # 0.27 of the time
    table = [[("forward", 0), ("backward", 0)], [("forward", 0), ("backward", 0)]]
    steps_of(table, forward=1.0, backward=2.0)

A schedule is a table: row r is what rank r does, in its order. An action is ("forward", m) or
("backward", m) for micro-batch m. A rank with several stages also says which: ("forward", m, 3).
The picture of the steps is multigpu.pictures.schedule. Steps of a run come from its trace, whose
stages are multigpu.ranks.stage_spans.WatchedStage::

    step = fastest_step(run_ranks(train, 2).trace)
    multigpu.pictures.schedule(step)
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multigpu.ranks.trace import Trace

KINDS = ("forward", "backward")
Action = tuple[Any, ...]  # (kind, micro-batch) or (kind, micro-batch, stage)
Costs = float | Sequence[float] | Mapping[int, float]  # of every stage, or of each


@dataclass(frozen=True)
class PipelineStep:
    """An action and its time: `start` and `end` in seconds, or in the unit of the costs."""

    rank: int
    kind: str
    micro_batch: int
    start: float
    end: float
    stage: int


def bubble(stages: int, micro_batches: int, *, stages_per_rank: int = 1) -> float:
    """The share of the time in which a rank is idle: (p - 1) / (v · m + p - 1).

    For `stages` ranks with stages that take equally long, GPipe and 1F1B alike; m is the number of
    micro-batches, v the stages that each rank has in an interleaved schedule. Sources: Huang et al.
    2019, arXiv 1811.06965; Narayanan et al. 2021, arXiv 2104.04473 (which gives it relative to the
    ideal time: (p - 1) / (v · m)).
    """
    return (stages - 1) / (stages_per_rank * micro_batches + stages - 1)


def steps_of(
    schedule: Sequence[Sequence[Action]],
    *,
    forward: Costs = 1.0,
    backward: Costs = 2.0,
    sending: float = 0.0,
) -> tuple[PipelineStep, ...]:
    """When each action of a schedule starts and ends, given the duration of each.

    `forward` and `backward` are the seconds of a micro-batch: one number for every stage, or one
    for each. The output of a stage reaches the next rank `sending` seconds later, while the sender
    continues. Each rank does one thing at a time, in the order of its row, as soon as its input is
    there. Returns the steps in the order of their start.

    Raises ValueError for an unknown or repeated action, and for a schedule in which every rank
    waits; the error says what each rank waits for.
    """
    left = [deque(_whole(action, rank) for action in row) for rank, row in enumerate(schedule)]
    every = Counter(action for row in left for action in row)
    for action, count in every.items():
        if count > 1:
            raise ValueError(f"{action[:2]} of stage {action[2]} occurs twice")
    last_stage = max((stage for *_, stage in every), default=0)
    costs = {"forward": forward, "backward": backward}
    done: dict[Action, PipelineStep] = {}
    free = [0.0] * len(left)  # when each rank has ended what it does
    before = -1
    while before < len(done):  # until no rank can continue
        before = len(done)
        for rank, row in enumerate(left):
            while row and all(need in done for need in _needs_of(row[0], last_stage)):
                kind, micro_batch, stage = action = row.popleft()
                found = [done[need] for need in _needs_of(action, last_stage)]
                arrivals = (step.end + (step.rank != rank) * sending for step in found)
                start = max([free[rank], *arrivals])
                cost = costs[kind]
                free[rank] = start + (cost if isinstance(cost, int | float) else cost[stage])
                done[action] = PipelineStep(rank, kind, micro_batch, start, free[rank], stage)
    waits = [
        f"rank {rank} waits before {row[0][:2]} for {need[:2]} of stage {need[2]}"
        for rank, row in enumerate(left)
        if row
        for need in _needs_of(row[0], last_stage)
        if need not in done
    ]
    if waits:
        raise ValueError(
            f"no rank can continue: {'; '.join(waits)}. Change the order, or add the missing "
            "actions."
        )
    return tuple(sorted(done.values(), key=lambda step: (step.start, step.rank)))


def _whole(action: Any, rank: int) -> Action:
    """(kind, micro-batch, stage) of an action as it was written."""
    kind, *numbers = action
    if len(numbers) == 1:
        numbers.append(rank)
    if len(numbers) != 2 or kind not in KINDS or not all(isinstance(n, int) for n in numbers):
        raise ValueError(
            f"rank {rank}: {action!r} is not an action: write ('forward', m) or ('backward', m)"
        )
    return (kind, *numbers)


def _needs_of(action: Action, last_stage: int) -> Iterator[Action]:
    """The actions that must come before an action."""
    kind, micro_batch, stage = action
    if kind == "backward":
        yield "forward", micro_batch, stage
        if stage < last_stage:
            yield "backward", micro_batch, stage + 1
    elif stage:
        yield "forward", micro_batch, stage - 1


def idle_share(steps: Iterable[PipelineStep]) -> float:
    """The share of all ranks' time, from the first start to the last end, in which they are idle.

    For equally long stages it is the bubble. It takes recorded steps as well as predicted ones.
    """
    steps = list(steps)
    if not steps:
        return 0.0
    total = max(step.end for step in steps) - min(step.start for step in steps)
    ranks = len({step.rank for step in steps})
    return 1 - sum(step.end - step.start for step in steps) / (ranks * total)


def most_in_flight(steps: Iterable[PipelineStep]) -> list[int]:
    """For each rank the largest number of micro-batches whose activations it holds at once.

    That is, forward has begun and backward has not ended. An interleaved rank counts each of its
    stages by itself.
    """
    changes: dict[int, list[tuple[float, int]]] = {}
    for step in steps:
        change = (step.start, 1) if step.kind == "forward" else (step.end, -1)
        changes.setdefault(step.rank, []).append(change)
    # Sorted: of the same moment, what ends comes first.
    return [
        max(accumulate(more for _, more in sorted(found))) for _, found in sorted(changes.items())
    ]


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
    moved = [replace(step, start=step.start - first, end=step.end - first) for step in found]
    return tuple(sorted(moved, key=lambda step: (step.start, step.rank)))


def fastest_step(trace: Trace) -> tuple[PipelineStep, ...]:
    """The fastest step of a run, without its first, which warms up: who computed when.

    A step begins with the forward of micro-batch 0 on rank 0, in its first stage.

    Raises ValueError for fewer than two steps, and for spans that are not whole steps.
    """
    labels = "forward 0", "forward 0 0"  # a second number is the stage, where ranks have several
    begun = [s.start for s in trace.spans if s.rank == 0 and s.label in labels]
    if len(begun) < 2:
        raise ValueError(f"{len(begun)} recorded steps: the first is left out, so record more")
    steps = [
        recorded_steps(trace.since(begin, until=end).spans)
        for begin, end in pairwise([*begun[1:], float("inf")])
    ]
    counts = [len(step) for step in steps]
    if len(set(counts)) > 1 or not all(map(_is_whole, steps)):
        raise ValueError(
            f"the recorded spans are not whole steps ({counts} actions). Pass input_args and "
            "output_args to PipelineStage. Otherwise it runs each stage once before the first "
            "micro-batch, and that is recorded as a forward"
        )
    return min(steps, key=lambda step: max(action.end for action in step))


def _is_whole(step: tuple[PipelineStep, ...]) -> bool:
    """Whether each forward has a backward, after it."""
    ends = {(s.stage, s.micro_batch): s.end for s in step if s.kind == "forward"}
    starts = {(s.stage, s.micro_batch): s.start for s in step if s.kind == "backward"}
    return ends.keys() == starts.keys() and all(ends[key] <= starts[key] for key in ends)
