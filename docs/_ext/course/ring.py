"""``.. ring-stepper::``: a ring all-reduce step by step, on 2, 3 and 4 ranks.

Messages, bytes and pictures come from ``ring_recording.py``, which runs the reference answer; the
words stand here.
"""

from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from course import explorer, stepping
from course.choices import choice
from course.element import html, text

HERE = Path(__file__).resolve().parent
SOURCES = [HERE / "ring_recording.py"]
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


def with_words(runs):
    """The record with what is said at each step, and with the bytes that a rank has sent so far."""
    for size, frames in runs.items():
        steps = int(size) - 1
        whole = sum(copy["bytes"] for copy in frames[1]["copies"])
        for number, frame in enumerate(frames):
            sent = most_sent(frames[: number + 1])
            words = START if number == 0 else (
                ADDED if number == steps else COPIED if number == 2 * steps
                else ADD if number < steps else COPY
            )  # fmt: skip
            frame["says"] = words.format(size=size, sent=sent, steps=steps, whole=whole)
            frame["code"] = "" if number == 0 else (
                "mine[chunk] += received" if number <= steps else "mine[chunk] = received"
            )  # fmt: skip
            frame["total"] = f"{sent:,} B sent by each rank so far"
    return {
        "title": "A ring all-reduce, step by step",
        "draw": "frames drawn before",
        "choices": [choice("ranks", "Ranks", list(runs), list(runs)[-1])],
        "cases": {size: {"ring": frames} for size, frames in runs.items()},
        "sides": {"ring": {"title": "ring_all_reduce", "habit": "twelve numbers of 8 bytes"}},
    }


def most_sent(frames):
    """The bytes that the busiest rank has sent in these frames; in a ring all are alike."""
    sent = {}
    for copy in (copy for frame in frames for copy in frame["copies"]):
        sent[copy["source"]] = sent.get(copy["source"], 0) + copy["bytes"]
    return max(sent.values(), default=0)


class RingStepper(SphinxDirective):
    def run(self):
        record = with_words(stepping.recorded(self.env, "ring", SOURCES))
        tables = [table(size, run["ring"]) for size, run in record["cases"].items()]
        return [explorer.box(record, "Every step and every message, as a table", tables)]


def table(size, frames):
    """One run as a table: a row per step, with its messages and what the ranks then hold."""
    names = ("Step", "Messages", "Afterwards each rank holds")
    head = html("tr", *(html("th", text(name), scope="col") for name in names))
    body = html("tbody")
    for frame in frames:
        messages = html("td", html("p", text(frame["says"])), data_side=names[1])
        if frame["copies"]:
            messages += listed(sentence(copy) for copy in frame["copies"])
        holds = html("td", data_side=names[2])
        holds += listed(
            f"rank {rank}: {', '.join(held)}" for rank, held in enumerate(frame["holds"])
        )
        body += html("tr", html("th", text(frame["label"]), scope="row"), messages, holds)
    caption = html("caption", text(f"A ring of {size} ranks; 0+1 is a sum over ranks 0 and 1"))
    made = html("table", caption, html("thead", head), body, classes=["course-copies"])
    return html("div", made, classes=["course-scroll"], data_case=size, tabindex="0")


def listed(sentences):
    items = (nodes.list_item("", nodes.paragraph("", sentence)) for sentence in sentences)
    return nodes.bullet_list("", *items)


def sentence(copy):
    carried = ", ".join(f"chunk {chunk} ({sum_})" for chunk, sum_ in copy["chunks"].items())
    return f"{copy['source']} → {copy['target']}: {carried}, {copy['bytes']:,} B"


def setup(app):
    app.add_directive("ring-stepper", RingStepper)
