"""``.. explorer:: ring-attention``: ring attention on four ranks, forward and backward.

Messages, bytes and pictures come from ``ring_attention_recording.py``, which runs the reference
answer; the words are here.
"""

from course.explorers.cases import choice, recorded, sent_so_far, steps_table, told

SUMMARY = "Every step and every message, as a table"
HEADS = ("Step", "Messages", "Each rank has")
START = (
    "Every rank has the queries, keys and values of its own part of the sequence, and keeps them. "
    "The block in use is at first a copy of its own keys and values."
)
FORWARD = (
    "Every rank attends to the block in use and merges the result with that of earlier blocks. "
    "Meanwhile the block travels on, and another one arrives."
)
LAST = "Every rank attends to the last block that came. Nothing is sent: the next would be its own."
BACKWARD = (
    "The blocks go around again. Every rank adds its part to the gradient of the block in use, and "
    "sends both on."
)
HOME = (
    "Every rank adds its part to the gradient of the last block, and sends only the gradient on, "
    "to its owner."
)
END = "Every rank has the gradient of its own keys and values, with the parts of all who used them."
SAYS = (START, *[FORWARD] * 3, LAST, *[BACKWARD] * 3, HOME, END)
IDLE = " Under the mask, {ranks} computed nothing in this step, because the block is later."
MERGE, ADD = "out, lse = merge_partial_attention(out, lse, *partial)", "grad_block += partial"
CODE = ("", *[MERGE] * 4, *[ADD] * 4, "")


def record(env):
    """The recording with what is said at each step, and the bytes that a rank has sent so far."""
    runs = recorded(env, "ring_attention")
    for frames in runs.values():
        for frame, says, code, sent in zip(frames, SAYS, CODE, sent_so_far(frames), strict=True):
            frame["says"], frame["code"] = says + idle(frame["idle"]), code
            frame["total"] = f"{sent:,} B sent by each rank so far"
    return {
        "title": "Ring attention on four ranks, step by step",
        "draw": "frames drawn before",
        "opens": 0,  # before anything is sent
        "choices": [choice("mask", "Mask", list(runs), "none")],
        "cases": {mask: {"ring": frames} for mask, frames in runs.items()},
        "sides": {
            "ring": {
                "title": "ring_attention",
                "habit": "64 positions, 2 heads of width 8, float64",
            }
        },
    }


def idle(ranks):
    if not ranks:
        return ""
    *most, one = map(str, ranks)
    return IDLE.format(ranks=f"ranks {', '.join(most)} and {one}" if most else f"rank {one}")


def tables(record):
    """A table for each mask: a row per step, with its messages and what the ranks have."""
    for mask, run in record["cases"].items():
        words = "without a mask" if mask == "none" else "with a causal mask"
        caption = f"Ring attention on 4 ranks, {words}"
        yield steps_table(mask, caption, HEADS, map(row, run["ring"]))


def row(frame):
    sent = (
        f"{copy['source']} → {copy['target']}: {copy['carries']}, {copy['bytes']:,} B"
        for copy in frame["copies"]
    )
    states = (", ".join(f"{name} {value}" for name, value in has.items()) for has in frame["holds"])
    has = (f"rank {rank}: {state}" for rank, state in enumerate(states))
    return frame["label"], told(HEADS[1], frame["says"], sent), told(HEADS[2], sentences=has)
