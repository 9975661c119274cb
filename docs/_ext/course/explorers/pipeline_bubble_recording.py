"""Work out the schedules of pipelines: GPipe, 1F1B and interleaved, by stages and micro-batches.

    python docs/_ext/course/explorers/pipeline_bubble_recording.py

prints JSON for the explorer. GPipe and 1F1B are the reference answers of the exercises, the
interleaved order is PyTorch's; times, bubble and what is in flight come from
``multigpu.scaling.pipeline_times``.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch.distributed.pipelining import ScheduleInterleaved1F1B

from multigpu.scaling.pipeline_times import bubble, idle_share, most_in_flight, steps_of

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "solutions"))
from pipeline import gpipe, one_f_one_b

RANKS = (2, 4, 8)
MICRO_BATCHES = (1, 2, 4, 8, 16)
ROUNDS = 2  # stages of a rank in an interleaved schedule, each half as long


def interleaved(ranks, micro_batches):
    """PyTorch's order. It asks stages for their numbers only, so stand-ins will do."""
    about = {"group_size": ranks, "group_rank": 0, "num_stages": ROUNDS * ranks}
    stages: list[Any] = [
        SimpleNamespace(**about, stage_index=i * ranks, is_first=i == 0, is_last=False,
                        has_backward=True)
        for i in range(ROUNDS)
    ]  # fmt: skip
    order = ScheduleInterleaved1F1B(stages, micro_batches).pipeline_order
    return [
        [(named(a.computation_type), a.microbatch_index, a.stage_index) for a in row if a]
        for row in order.values()
    ]


def named(kind):
    return "forward" if kind.name == "FORWARD" else "backward"


SCHEDULES = {"GPipe": (gpipe, 1), "1F1B": (one_f_one_b, 1), "interleaved": (interleaved, ROUNDS)}


def recorded(name, ranks, micro_batches):
    """One schedule. A forward through all of a rank's layers takes 1, a backward 2."""
    make, rounds = SCHEDULES[name]
    costs = {"forward": 1 / rounds, "backward": 2 / rounds}
    steps = steps_of(make(ranks, micro_batches), **costs)
    return {
        "steps": [[s.rank, s.kind[0], s.micro_batch, s.stage, s.start] for s in steps],
        "costs": [costs["forward"], costs["backward"]],
        "time": max(step.end for step in steps),
        "idle": idle_share(steps),
        "formula": bubble(ranks, micro_batches, stages_per_rank=rounds),
        "held": most_in_flight(steps),
        "rounds": rounds,
    }


if __name__ == "__main__":
    cases = {
        f"{ranks} {micro_batches} {name}": recorded(name, ranks, micro_batches)
        for ranks in RANKS
        for micro_batches in MICRO_BATCHES
        for name in SCHEDULES
    }
    json.dump(cases, sys.stdout)
