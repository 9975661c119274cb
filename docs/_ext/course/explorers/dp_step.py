"""``.. explorer:: dp-step``: one step of data parallelism, by hand and in nn.DataParallel.

The numbers come from ``dp_step_recording.py`` and its record; the words from ``dp_step.toml``.
"""

import tomllib
from pathlib import Path

from course.explorers.cases import choice, recorded, steps_table, told

WORDS = Path(__file__).with_suffix(".toml")
SUMMARY = "Every movement and every copy, as a table"
SIDES = {
    "hand": ("By hand", "replicates once, broadcasts after every step"),
    "dp": ("nn.DataParallel", "replicates in every forward, no broadcast after the step"),
}


def record(env):
    """The recording with what each side says and types at each movement."""
    env.note_dependency(str(WORDS))
    words, made = tomllib.loads(WORDS.read_text(encoding="utf-8")), recorded(env, "dp_step")
    for size, run in made["cases"].items():
        for side, frames in run.items():
            rows = listed(held["rows"] for held in frames[1]["holds"] if held["rows"])
            for frame in frames:
                said = words[frame["movement"]]
                frame["says"] = said[side].format(rows=rows, gpus=size)
                frame["code"] = said[f"{side}_code"]
                frame["label"] = said["label"]
    sizes = list(made["cases"])
    return {
        **made,
        "title": "One training step, movement by movement",
        "draw": "device lanes",
        "choices": [choice("gpus", "GPUs", sizes, sizes[-1])],
        "sides": {side: {"title": title, "habit": habit} for side, (title, habit) in SIDES.items()},
    }


def listed(numbers):
    """``[4, 4, 2]`` as "4, 4 and 2"."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def tables(record):
    """A table for each number of GPUs: a row per movement, a column per side."""
    titles = {side: title for side, (title, _) in SIDES.items()}
    for size, run in record["cases"].items():
        rows = [
            (
                hand["label"],
                told(titles["hand"], hand["says"], map(sentence, hand["copies"])),
                told(titles["dp"], dp["says"], map(sentence, dp["copies"])),
            )
            for hand, dp in zip(run["hand"], run["dp"], strict=True)
        ]
        totals = (told(title, f"{total(run[side]):,} B") for side, title in titles.items())
        columns, foot = ("Movement", *titles.values()), [("All of these", *totals)]
        yield steps_table(size, f"One step on {size} GPUs", columns, rows, foot=foot)


def sentence(copy):
    return f"{name_of(copy['source'])} → {name_of(copy['target'])}: {copy['bytes']:,} B"


def name_of(device):
    return "CPU" if device == "cpu" else f"GPU {device.removeprefix('cuda:')}"


def total(frames):
    return sum(copy["bytes"] for frame in frames for copy in frame["copies"])
