"""``.. tensor-pair-stepper::``: a column-parallel and a row-parallel layer, forward and backward.

What ranks hold and send, and the pictures, come from ``tensor_pair_recording.py``, which runs the
reference answers. The words come from this file.
"""

from pathlib import Path

from sphinx.util.docutils import SphinxDirective

from course import explorer, ring, stepping
from course.choices import choice, key
from course.element import html, text

HERE = Path(__file__).resolve().parent
SOURCES = [HERE / "tensor_pair_recording.py"]
HABIT = "X and Z have 4 rows and 4 columns, Y has 8 columns, all in float32"
KINDS = {"tensor": "Tensor parallel", "sequence": "Sequence parallel"}
COLUMNS = "Each rank multiplies all rows by its columns of A, then applies GELU to its part of Y."
SHARES = "Each rank multiplies its columns of Y by its rows of B. The result is a partial sum of Z."
BACK_ROWS = "The gradient of a rank's part of Y needs only its rows of B, so nothing is sent."
BACK_COLUMNS = (
    "Each rank multiplies by its columns of A, transposed: its partial sum of the gradient of X."
)
SAYS = {
    "tensor": (
        "All ranks hold the whole X: every row (a token) and every column.",
        "The operator f changes nothing in forward.",
        COLUMNS,
        SHARES,
        "The operator g adds the partial sums up with an all-reduce: {each:g} B from each rank.",
        "Backward begins. All ranks have the whole gradient of Z, and g changes nothing.",
        BACK_ROWS,
        BACK_COLUMNS,
        "The operator f adds the partial sums up with an all-reduce: {each:g} B from each rank.",
    ),
    "sequence": (
        "Each rank holds its rows of X.",
        "An all-gather brings all rows to every rank: {each:g} B from each.",
        COLUMNS,
        SHARES,
        "A reduce-scatter adds the partial sums up, and each rank keeps its rows of Z: {each:g} B.",
        "Backward begins. An all-gather brings all rows of Z's gradient: {each:g} B.",
        BACK_ROWS,
        BACK_COLUMNS,
        "A reduce-scatter adds the partial sums up, and each rank keeps its rows: {each:g} B.",
    ),
}
PRODUCTS = ("Y = gelu(X @ A_r)", "share = Y @ B_r")
BACK = ("dY = dZ @ B_r.T", "share = (dY * gelu') @ A_r.T")
CODE = {
    "tensor": (
        *("", "X = f(X)", *PRODUCTS, "Z = all_reduce(share)"),
        *("dZ", *BACK, "dX = all_reduce(share)"),
    ),
    "sequence": (
        *("", "X = all_gather(X)", *PRODUCTS, "Z = reduce_scatter(share)"),
        *("dZ = all_gather(dZ)", *BACK, "dX = reduce_scatter(share)"),
    ),
}


def with_words(runs):
    """The record with what is said at each step, and with the bytes that a rank has sent so far."""
    cases = {}
    for size, run in runs.items():
        for kind, frames in run.items():
            for frame, says, code in zip(frames, SAYS[kind], CODE[kind], strict=True):
                frame["says"] = says.format(each=frame["each"])
                frame["code"] = code
                frame["total"] = f"{frame['sent']:g} B sent by each rank so far"
            cases[key(size, kind)] = {"pair": frames}
    return {
        "title": "A column-parallel and a row-parallel layer, step by step",
        "draw": "frames drawn before",
        "opens": 0,  # the first step sends nothing, so the start says more
        "choices": [
            choice("ranks", "Ranks", list(runs), next(iter(runs))),
            choice("kind", "Kind", list(KINDS.items()), "tensor"),
        ],
        "cases": cases,
        "sides": {"pair": {"title": "Forward, then backward", "habit": HABIT}},
    }


class TensorPairStepper(SphinxDirective):
    def run(self):
        record = with_words(stepping.recorded(self.env, "tensor_pair", SOURCES))
        tables = [table(case, frames["pair"]) for case, frames in record["cases"].items()]
        return [explorer.box(record, "Every step, as a table", tables)]


def table(case, frames):
    """One run as a table: a row per step, with what is sent and what the ranks then hold."""
    size, kind = case.split()
    names = ("Step", "What happens", "Afterwards each rank holds")
    head = html("tr", *(html("th", text(name), scope="col") for name in names))
    body = html("tbody")
    for frame in frames:
        happens = html("td", html("p", text(frame["says"])), data_side=names[1])
        holds = html("td", data_side=names[2])
        holds += ring.listed(
            f"rank {rank} holds {held}" for rank, held in enumerate(frame["holds"])
        )
        body += html("tr", html("th", text(frame["label"]), scope="row"), happens, holds)
    caption = html("caption", text(f"{KINDS[kind]}, {size} ranks. {HABIT}"))
    made = html("table", caption, html("thead", head), body, classes=["course-copies"])
    return html("div", made, classes=["course-scroll"], data_case=case, tabindex="0")


def setup(app):
    app.add_directive("tensor-pair-stepper", TensorPairStepper)
