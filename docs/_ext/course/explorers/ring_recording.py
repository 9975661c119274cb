"""Record a ring all-reduce of twelve numbers on 2, 3 and 4 ranks.

    python docs/_ext/course/explorers/ring_recording.py

prints JSON for the stepper: each message with its bytes as the trace has them, what every rank
holds after each step, and the picture of it. The site draws these records and nothing else.
"""

import json
import sys
from pathlib import Path

from multigpu.pictures.holdings import added
from multigpu.scaling.all_reduce_steps import steps_of_all_reduce

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "solutions"))
from collectives import ring_all_reduce

SIZES = (2, 3, 4)


def recorded(size):
    """The steps of one run, as plain data."""
    return [
        {
            "label": step.label,
            "copies": [as_data(message) for message in step.messages],
            "holds": [[added(sum_) for sum_ in rank] for rank in step.holds],
            "svg": step.picture().svg(),
        }
        for step in steps_of_all_reduce(ring_all_reduce, size)
    ]


def as_data(message):
    return {
        "source": f"rank {message.source}",
        "target": f"rank {message.target}",
        "bytes": message.bytes,
        "chunks": {chunk: added(sum_) for chunk, sum_ in message.chunks.items()},
    }


if __name__ == "__main__":
    json.dump({size: recorded(size) for size in SIZES}, sys.stdout)
