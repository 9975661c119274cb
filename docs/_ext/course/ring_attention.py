"""``.. ring-attention-stepper::``: ring attention on four ranks, forward and backward.

Messages, bytes and pictures come from ``ring_attention_recording.py``, which runs the reference
answer; the words are here.
"""

from pathlib import Path

from sphinx.util.docutils import SphinxDirective

from course import explorer, stepping
from course.choices import choice
from course.element import html, text
from course.ring import listed, most_sent

HERE = Path(__file__).resolve().parent
SOURCES = [HERE / "ring_attention_recording.py"]
MASKS = [("none", "none"), ("causal", "causal")]

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
IDLE = " Under the mask, {ranks} computed nothing in this step, because the block is later."


def with_words(runs):
    """The record with what is said at each step, and with the bytes that a rank has sent so far."""
    for frames in runs.values():
        labels = [frame["label"] for frame in frames]
        for number, frame in enumerate(frames):
            frame["says"] = said_of(frame["label"], labels) + idle(frame["idle"])
            frame["code"] = {
                "forward": "out, lse = merge_partial_attention(out, lse, *partial)",
                "backward": "grad_block += partial",
            }[frame["direction"]] if frame["label"] not in ("start", "end") else ""  # fmt: skip
            frame["total"] = f"{most_sent(frames[: number + 1]):,} B sent by each rank so far"
    return {
        "title": "Ring attention on four ranks, step by step",
        "draw": "frames drawn before",
        "opens": 0,  # before anything is sent
        "choices": [choice("mask", "Mask", MASKS, "none")],
        "cases": {mask: {"ring": frames} for mask, frames in runs.items()},
        "sides": {
            "ring": {
                "title": "ring_attention",
                "habit": "64 positions, 2 heads of width 8, float64",
            }
        },
    }


def said_of(label, labels):
    if label in ("start", "end"):
        return START if label == "start" else END
    direction, last = label.split()[0], label == labels[-2]
    if direction == "forward":
        after = labels[labels.index(label) + 1]
        return FORWARD if after.startswith("forward") else LAST
    return HOME if last else BACKWARD


def idle(ranks):
    if not ranks:
        return ""
    *most, one = map(str, ranks)
    return IDLE.format(ranks=f"ranks {', '.join(most)} and {one}" if most else f"rank {one}")


class RingAttentionStepper(SphinxDirective):
    def run(self):
        record = with_words(stepping.recorded(self.env, "ring_attention", SOURCES))
        tables = [table(mask, run["ring"]) for mask, run in record["cases"].items()]
        return [explorer.box(record, "Every step and every message, as a table", tables)]


def table(mask, frames):
    """One run as a table: a row per step, with its messages and what the ranks have."""
    names = ("Step", "Messages", "Each rank has")
    head = html("tr", *(html("th", text(name), scope="col") for name in names))
    body = html("tbody")
    for frame in frames:
        messages = html("td", html("p", text(frame["says"])), data_side=names[1])
        if frame["copies"]:
            messages += listed(sentence(copy) for copy in frame["copies"])
        holds = html("td", data_side=names[2])
        holds += listed(f"rank {rank}: {state(held)}" for rank, held in enumerate(frame["holds"]))
        body += html("tr", html("th", text(frame["label"]), scope="row"), messages, holds)
    mask_words = "without a mask" if mask == "none" else "with a causal mask"
    caption = html("caption", text(f"Ring attention on 4 ranks, {mask_words}"))
    made = html("table", caption, html("thead", head), body, classes=["course-copies"])
    return html("div", made, classes=["course-scroll"], data_case=mask, tabindex="0")


def state(held):
    """For example "in use block 3, attended to 0+3"."""
    return ", ".join(f"{name} {value}" for name, value in held.items())


def sentence(copy):
    return f"{copy['source']} → {copy['target']}: {copy['carries']}, {copy['bytes']:,} B"


def setup(app):
    app.add_directive("ring-attention-stepper", RingAttentionStepper)
