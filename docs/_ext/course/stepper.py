"""``.. dp-stepper::``: one step of data parallelism, movement by movement, by hand and in torch.

The numbers come from ``dp_step_recording.py`` and its record; the words from ``stepper.toml``. The
page gets both as a table, which reads without JavaScript, and as JSON, from which our script draws
the animation.
"""

import tomllib
from functools import cache
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from course import explorer, stepping
from course.choices import choice
from course.element import html, text

HERE = Path(__file__).resolve().parent
SOURCES = [HERE / "dp_step_recording.py"]
TITLE = "One training step, movement by movement"
SIDES = {
    "hand": ("By hand", "replicates once, broadcasts after every step"),
    "dp": ("nn.DataParallel", "replicates in every forward, no broadcast after the step"),
}


@cache
def words():
    return tomllib.loads((HERE / "stepper.toml").read_text(encoding="utf-8"))


def listed(numbers):
    """``[4, 4, 2]`` as "4, 4 and 2"."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def name_of(device):
    return "CPU" if device == "cpu" else f"GPU {device.removeprefix('cuda:')}"


def with_words(recorded):
    """The record with what each side says and types at each movement."""
    for size, run in recorded["cases"].items():
        for side, frames in run.items():
            rows = listed(held["rows"] for held in frames[1]["holds"] if held["rows"])
            for frame in frames:
                said = words()[frame["movement"]]
                frame["says"] = said[side].format(rows=rows, gpus=size)
                frame["code"] = said[f"{side}_code"]
                frame["label"] = said["label"]
    sides = {side: {"title": title, "habit": habit} for side, (title, habit) in SIDES.items()}
    sizes = list(recorded["cases"])
    gpus = choice("gpus", "GPUs", sizes, sizes[-1])
    return {**recorded, "title": TITLE, "draw": "device lanes", "choices": [gpus], "sides": sides}


class Stepper(SphinxDirective):
    def run(self):
        self.env.note_dependency(str(HERE / "stepper.toml"))
        recorded = with_words(stepping.recorded(self.env, "dp_step", SOURCES))
        tables = [table(size, run) for size, run in recorded["cases"].items()]
        return [explorer.box(recorded, "Every movement and every copy, as a table", tables)]


def table(size, run):
    """One run as a table: a row per movement, a column per side."""
    head = html(
        "tr",
        *(
            html("th", text(words), scope="col")
            for words in ("Movement", *(title for title, _ in SIDES.values()))
        ),
    )
    body = html("tbody")
    for hand, dp in zip(run["hand"], run["dp"], strict=True):
        name = html("th", text(hand["label"]), scope="row")
        body += html("tr", name, told("hand", hand), told("dp", dp))
    totals = (
        html("td", html("p", text(f"{total(run[side]):,} B")), data_side=title)
        for side, (title, _) in SIDES.items()
    )
    foot = html(
        "tr",
        html("th", text("All of these"), scope="row"),
        *totals,
    )
    caption = html("caption", text(f"One step on {size} GPUs"))
    made = html(
        "table", caption, html("thead", head), body, html("tfoot", foot), classes=["course-copies"]
    )
    return html("div", made, classes=["course-scroll"], data_case=size, tabindex="0")


def told(side, frame):
    cell = html("td", html("p", text(frame["says"])), data_side=SIDES[side][0])
    if frame["copies"]:
        items = (
            nodes.list_item("", nodes.paragraph("", sentence(copy))) for copy in frame["copies"]
        )
        cell += nodes.bullet_list("", *items)
    return cell


def sentence(copy):
    return f"{name_of(copy['source'])} → {name_of(copy['target'])}: {copy['bytes']:,} B"


def total(frames):
    return sum(copy["bytes"] for frame in frames for copy in frame["copies"])


def setup(app):
    app.add_directive("dp-stepper", Stepper)
