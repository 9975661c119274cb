"""What one rank did in one step of ``pipeline.run``: its actions, recognised by their numbers."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from multigpu.checking import Returned, Wrong
from multigpu.checking.comparing import same
from multigpu.checking.verdicts import listed


@dataclass(frozen=True)
class Side:
    """One rank in one step.  ``right`` is the Step of the uncut model."""

    case: Any
    right: Any
    rank: int
    step: int
    returned: Any
    events: list
    left: list
    gradients: dict
    calls: tuple
    where: str

    @property
    def is_last(self):
        return self.rank == len(self.case.table) - 1

    @property
    def row(self):
        """What this rank is to do."""
        return self.case.table[self.rank]

    @cached_property
    def microbatch_of(self):
        """By the number of a forward: which micro-batch it was, None if it was none."""
        return {
            event["call"]: recognised(event["tensor"], self.right.inputs[self.rank])
            for event in self.events
            if event["kind"] == "forward"
        }

    @cached_property
    def actions(self):
        """What this rank did, with the event.  A forward that only repeats one counts once.

        Who forgets what a forward computed, and computes it again for backward, may do so.
        """
        done, without_graph = [], set()
        for event in self.events:
            m = self.microbatch_of[event["call"]]
            if event["kind"] == "forward" and event["graph"] and m in without_graph:
                continue
            if event["kind"] == "forward" and not event["graph"]:
                without_graph.add(m)
            done.append(((event["kind"], m), event))
        return done

    def wrong(self, mistake, expected, came, usually, *, where=None):
        sizes = listed(self.case.rows)
        of = f"step {self.step + 1} with " if self.case.steps > 1 else ""
        stages = "1 stage" if len(self.case.table) == 1 else f"{len(self.case.table)} stages"
        return Wrong(
            f"run.{mistake}",
            expected=f"{expected} ({of}{stages}, micro-batches of {sizes} rows)",
            came=came,
            usually=usually,
            where=where or self.where,
        )


def recognised(came, known):
    """The number of the first known tensor that it is equal to."""
    if not isinstance(came, Returned):
        return None
    return next((m for m, tensor in enumerate(known) if same(came.value, tensor)), None)


def sides_of(answer, number, case, steps):
    """``[step][rank]`` of the case with this number."""
    return [
        [side(answer, rank, number, step, case, right) for rank in range(len(case.table))]
        for step, right in enumerate(steps)
    ]


def side(answer, rank, number, step, case, right):
    result = dict(answer.results[rank][number][step])
    began, ended = result.pop("times")
    calls = tuple(call for call in answer.trace.of(rank) if began <= call.time <= ended)
    return Side(case, right, rank, step, calls=calls, where=answer.wheres[rank], **result)
