"""``.. explorer:: tensor-pair``: a column-parallel and a row-parallel layer, forward and backward.

What ranks hold and send, and the pictures, come from ``tensor_pair_recording.py``, which runs the
reference answers. The words come from this file.
"""

from course.explorers.cases import choice, key, recorded, steps_table, told

SUMMARY = "Every step, as a table"
HEADS = ("Step", "What happens", "Afterwards each rank holds")
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


def record(env):
    """The recording with what is said at each step, and the bytes that a rank has sent so far."""
    runs, cases = recorded(env, "tensor_pair"), {}
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


def tables(record):
    """A table for each case: a row per step, with what is sent and what the ranks then hold."""
    for case, sides in record["cases"].items():
        size, kind = case.split()
        caption = f"{KINDS[kind]}, {size} ranks. {HABIT}"
        yield steps_table(case, caption, HEADS, map(row, sides["pair"]))


def row(frame):
    holds = (f"rank {rank} holds {held}" for rank, held in enumerate(frame["holds"]))
    return frame["label"], told(HEADS[1], frame["says"]), told(HEADS[2], sentences=holds)
