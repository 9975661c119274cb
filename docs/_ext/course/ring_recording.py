"""Record a ring all-reduce of twelve numbers on 2, 3 and 4 ranks.

    python docs/_ext/course/ring_recording.py

prints JSON for the stepper: each message with its bytes as the trace has them, what every rank
holds after each step, and the picture of it. The site draws these records and nothing else.
"""

import json
import sys
from pathlib import Path

from multigpu.pictures.holdings import added, parts
from multigpu.ranks.film import columns_of, frames_of, held_in, in_parts, labels_of

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "solutions"))
from collectives import ring_all_reduce

SIZES = (2, 3, 4)


def recorded(size):
    """The frames of one run, as plain data."""
    frames = frames_of(ring_all_reduce, size)
    columns = columns_of(frames)
    made = []
    for number, (label, frame) in enumerate(zip(labels_of(frames), frames, strict=True)):
        sent = [in_parts(message, columns) for message in frame.messages]
        held = held_in(frame, columns)
        before = held_in(frames[max(number - 1, 0)], columns)
        made.append(
            {
                "label": label,
                "copies": [as_data(message) for message in sent],
                "holds": [[added(sum_) for sum_ in rank] for rank in held],
                "svg": parts(before, held, sent).svg(),
            }
        )
    return made


def as_data(message):
    return {
        "source": f"rank {message.source}",
        "target": f"rank {message.target}",
        "bytes": message.bytes,
        "parts": {part: added(sum_) for part, sum_ in message.parts.items()},
    }


if __name__ == "__main__":
    json.dump({size: recorded(size) for size in SIZES}, sys.stdout)
