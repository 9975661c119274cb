"""``.. explorer:: ring``: a ring all-reduce step by step, on 2, 3 and 4 ranks.

Messages, bytes and pictures come from ``ring_recording.py``, which runs the reference answer; the
words stand here.
"""

from course.explorers.cases import choice, recorded, sent_so_far, steps_table, told

SUMMARY = "Every step and every message, as a table"
HEADS = ("Step", "Messages", "Afterwards each rank holds")
START = "Every rank holds numbers of its own, cut into {size} chunks. All ranks need the sum."
ADD = "Every rank sends one chunk to the next rank, which adds it to its own copy of that chunk."
ADDED = (
    "Every rank sends one chunk to the next. Now each rank has the complete sum of one chunk, "
    "a different one on each rank. "
    "Up to here this was a reduce-scatter."
)
COPY = (
    "The complete chunks travel around the ring. A rank that receives one overwrites its own copy."
)
COPIED = (
    "Every rank has every chunk. The second half was an all-gather. Each rank has sent {sent:,} B: "
    "2 × {steps}/{size} of the {whole:,} B of the tensor."
)


def record(env):
    """The recording with what is said at each step, and the bytes that a rank has sent so far."""
    runs = recorded(env, "ring")
    for size, frames in runs.items():
        steps = int(size) - 1
        add, copy = "mine[chunk] += received", "mine[chunk] = received"
        says = [START, *[ADD] * (steps - 1), ADDED, *[COPY] * (steps - 1), COPIED]
        code = ["", *[add] * steps, *[copy] * steps]
        whole = sum(copy["bytes"] for copy in frames[1]["copies"])
        sums = sent_so_far(frames)
        for frame, words, line, sent in zip(frames, says, code, sums, strict=True):
            frame["says"] = words.format(size=size, sent=sent, steps=steps, whole=whole)
            frame["code"] = line
            frame["total"] = f"{sent:,} B sent by each rank so far"
    return {
        "title": "A ring all-reduce, step by step",
        "draw": "frames drawn before",
        "choices": [choice("ranks", "Ranks", list(runs), list(runs)[-1])],
        "cases": {size: {"ring": frames} for size, frames in runs.items()},
        "sides": {"ring": {"title": "ring_all_reduce", "habit": "twelve numbers of 8 bytes"}},
    }


def tables(record):
    """A table for each size: a row per step, with its messages and what the ranks then hold."""
    for size, run in record["cases"].items():
        caption = f"A ring of {size} ranks; 0+1 is a sum over ranks 0 and 1"
        yield steps_table(size, caption, HEADS, map(row, run["ring"]))


def row(frame):
    holds = (f"rank {rank}: {', '.join(held)}" for rank, held in enumerate(frame["holds"]))
    return (
        frame["label"],
        told(HEADS[1], frame["says"], map(sentence, frame["copies"])),
        told(HEADS[2], sentences=holds),
    )


def sentence(copy):
    carried = ", ".join(f"chunk {chunk} ({sum_})" for chunk, sum_ in copy["chunks"].items())
    return f"{copy['source']} → {copy['target']}: {carried}, {copy['bytes']:,} B"
