"""The steps of a recorded pipeline: where one ends and the next begins.

    step = fastest_step(run_ranks(train, 2).trace)
    multigpu.pictures.schedule(step)

The stages that `train` uses are multigpu.ranks.stage_spans.WatchedStage.
"""

from __future__ import annotations

from itertools import pairwise

from multigpu.ranks.trace import Trace
from multigpu.scaling.pipelining import PipelineStep, recorded_steps


def fastest_step(trace: Trace) -> tuple[PipelineStep, ...]:
    """The fastest step of a run, without its first, which warms up: who computed when.

    A step begins with the forward of micro-batch 0 on rank 0, in its first stage.

    Raises ValueError for fewer than two steps, and for spans that are no whole steps.
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
            f"the recorded spans are no whole steps ({counts} actions). PipelineStage needs "
            "input_args and output_args here. Else it tries each stage out before the first "
            "micro-batch, and that is recorded as a forward"
        )
    return min(steps, key=lambda step: max(action.end for action in step))


def _is_whole(step: tuple[PipelineStep, ...]) -> bool:
    """Whether each forward has a backward, after it."""
    ends = {(s.stage, s.micro_batch): s.end for s in step if s.kind == "forward"}
    starts = {(s.stage, s.micro_batch): s.start for s in step if s.kind == "backward"}
    return ends.keys() == starts.keys() and all(ends[key] <= starts[key] for key in ends)
