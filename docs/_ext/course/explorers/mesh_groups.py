"""Who talks to whom in a mesh: the tp, dp and pp groups, on machines of eight GPUs each."""

from itertools import product

import torch

from course.explorers.cases import choice, grid, key
from multigpu.pictures import palette

SUMMARY = "The groups of 8 ranks, as a table"
RANKS, TP, PP = (4, 8, 16, 32), (1, 2, 4, 8), (1, 2, 4)
NODE = 8  # ranks on a machine
DIRECTIONS = {"tp": "tensor parallel (tp)", "dp": "data parallel (dp)", "pp": "pipeline (pp)"}
SENT = {
    "tp": "A group adds up activations: four times in each layer, in every micro-batch.",
    "dp": "A group averages gradients: once in each step.",
    "pp": "Neighbors in a group send activations and their gradients, in every micro-batch.",
}


def record(env):
    """Every case: the groups of each direction, and a sentence about them."""
    return {
        "title": "Who talks to whom",
        "draw": "mesh",
        "choices": [
            choice("ranks", "Ranks", RANKS, 8),
            choice("tp", "tp", TP, 2),
            choice("pp", "pp", PP, 2),
            choice("shown", "Show the groups of", DIRECTIONS.items(), "tp", view=True),
        ],
        "node": NODE,
        "inks": [[fill, palette.ink_on(fill)] for fill in palette.COLORS],
        "cases": {
            key(ranks, tp, pp): case(ranks, tp, pp)
            for ranks, tp, pp in product(RANKS, TP, PP)
            if ranks % (tp * pp) == 0
        },
    }


def case(ranks, tp, pp):
    mesh = torch.arange(ranks).view(pp, -1, tp)
    groups = {
        "tp": mesh.reshape(-1, tp).tolist(),
        "dp": mesh.movedim(1, -1).reshape(-1, mesh.shape[1]).tolist(),
        "pp": mesh.movedim(0, -1).reshape(-1, pp).tolist(),
    }
    sizes = f"{ranks} ranks: dp {mesh.shape[1]}, tp {tp}, pp {pp}."
    return {
        name: {"groups": own, "says": sentence(sizes, name, own)} for name, own in groups.items()
    }


def sentence(sizes, direction, groups):
    count, size = len(groups), len(groups[0])
    if size == 1:
        return f"{sizes} {direction} is 1: each rank is alone in its group and sends nothing."
    apart = groups[0][1] - groups[0][0]
    across = sum(group[0] // NODE != group[-1] // NODE for group in groups)
    where = "each inside one machine"
    if across:
        where = f"{'all' if across == count else across} of them across machines"
    near = "whose numbers follow each other" if apart == 1 else f"{apart} apart"
    return (
        f"{sizes} {count} {direction} group{'s'[: count > 1]} of {size} ranks {near}, {where}. "
        f"{SENT[direction]}"
    )


def tables(record):
    rows = []
    for name, groups in record["cases"].items():
        ranks, tp, pp = name.split()
        if ranks == "8":
            written = ("; ".join(map(written_as, groups[d]["groups"])) for d in DIRECTIONS)
            rows.append((f"tp {tp}, pp {pp}", *written))
    return [grid("All groups of 8 ranks", ("Sizes", *DIRECTIONS), rows)]


def written_as(group):
    return " ".join(map(str, group))
