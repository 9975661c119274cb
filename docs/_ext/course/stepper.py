"""``.. dp-stepper::``: one step of data parallelism, movement by movement, by hand and in torch.

The numbers come from ``recording.py``, run once per state of the code; the words from
``stepper.toml``. The page gets both as a table, which reads without JavaScript, and as JSON, from
which our script draws the animation.
"""

import json
import subprocess
import sys
import tomllib
from functools import cache
from hashlib import sha256
from pathlib import Path

from docutils import nodes
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from course.element import html, raw, text
from course.execution import state_of_the_code

HERE = Path(__file__).resolve().parent
SOURCES = [HERE / "recording.py", HERE / "film.py", HERE / "stepper.toml"]
SIDES = {
    "hand": ("By hand", "replicates once, broadcasts after every step"),
    "dp": ("nn.DataParallel", "replicates in every forward, no broadcast after the step"),
}


@cache
def words():
    return tomllib.loads((HERE / "stepper.toml").read_text(encoding="utf-8"))


def record(folder):
    """The recorded runs, from ``folder`` while neither code nor recording changed."""
    key = sha256(state_of_the_code().encode())
    for source in SOURCES:
        key.update(source.read_bytes())
    kept = folder / f"dp_step-{key.hexdigest()[:16]}.json"
    if not kept.exists():
        command = [sys.executable, str(HERE / "recording.py")]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if ran.returncode:
            raise ExtensionError(f"recording.py failed:\n{ran.stderr}")
        folder.mkdir(exist_ok=True)
        for old in folder.glob("dp_step-*.json"):
            old.unlink(missing_ok=True)
        kept.write_text(ran.stdout, encoding="utf-8")
    return json.loads(kept.read_text(encoding="utf-8"))


def listed(numbers):
    """``[4, 4, 2]`` as "4, 4 and 2"."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def name_of(device):
    return "CPU" if device == "cpu" else f"GPU {device.removeprefix('cuda:')}"


def with_words(recorded):
    """The record with what each side says and types at each movement."""
    for size, run in recorded["runs"].items():
        for side, frames in run.items():
            rows = listed(held["rows"] for held in frames[1]["holds"] if held["rows"])
            for frame in frames:
                said = words()[frame["movement"]]
                frame["says"] = said[side].format(rows=rows, gpus=size)
                frame["code"] = said[f"{side}_code"]
    labels = {movement: said["label"] for movement, said in words().items()}
    sides = {side: {"title": title, "habit": habit} for side, (title, habit) in SIDES.items()}
    return {**recorded, "labels": labels, "sides": sides}


class Stepper(SphinxDirective):
    def run(self):
        recorded = with_words(record(Path(self.env.srcdir) / "_recorded"))
        for source in SOURCES:
            self.env.note_dependency(str(source))
        # "</" would end the script element early.
        data = json.dumps(recorded, separators=(",", ":")).replace("</", "<\\/")
        tables = [table(size, run, recorded["labels"]) for size, run in recorded["runs"].items()]
        numbers = html(
            "details",
            html("summary", text("Every movement and every copy, as a table")),
            *tables,
            classes=["course-numbers"],
            open="",
        )
        label = html("p", text("One training step, movement by movement"), classes=["course-label"])
        stage = html("div", classes=["course-stage"])
        script = raw(f'<script type="application/json">{data}</script>')
        return [html("div", label, stage, numbers, script, classes=["course-stepper"])]


def table(size, run, labels):
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
        name = html("th", text(labels[hand["movement"]]), scope="row")
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
    return html("div", made, classes=["course-scroll"], data_gpus=size, tabindex="0")


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
