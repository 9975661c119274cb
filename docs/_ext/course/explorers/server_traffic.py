"""Bytes of one step with a model server and with a ring, by the number of GPUs.

The numbers are those of ``multigpu.scaling.formulas``; the page around it counts the same in runs.
"""

from course.explorers.cases import choice, grid, key
from multigpu.pictures import palette
from multigpu.pictures.units import human_seconds
from multigpu.scaling.formulas import all_reduce_bytes, all_reduce_seconds

SUMMARY = "The bytes, as a table"
GPUS = (2, 3, 4, 8, 16, 64)
WEIGHTS = {9_600: "9,600 B", 100_000_000: "100 MB", 4_000_000_000: "4 GB"}
LINK = 12.5e9  # bytes per second: a network of 100 Gb/s


def record(env):
    """Every case: bytes of the busiest rank, in and out, and of all ranks together."""
    return {
        "title": "Where the bytes go",
        "draw": "traffic",
        "choices": [
            choice("gpus", "GPUs at work", GPUS, 4),
            choice("weights", "Weights", list(WEIGHTS.items()), 9_600),
        ],
        "colors": [[fill, palette.ink_on(fill)] for fill in palette.COLORS],
        "host": palette.HOST,
        "cases": {key(n, size): case(n, size) for n in GPUS for size in WEIGHTS},
    }


def case(n, size):
    server = 2 * n * size  # from each worker its gradients, to each the new weights
    ring = all_reduce_bytes(n, size)  # out of each rank, and as many in
    times = server / LINK, all_reduce_seconds(n, size, bandwidth=LINK)
    busiest, total = {"server": server, "ring": 2 * ring}, {"server": server, "ring": n * ring}
    return {
        "gpus": n,
        "busiest": busiest,
        "total": total,
        "written": {"busiest": in_words(busiest), "total": in_words(total)},
        "says": f"{n} GPUs. Through the busiest link go {amount(server)} with a server and "
        f"{amount(2 * ring)} in a ring; in all {amount(server)} and {amount(n * ring)}. Links of "
        f"12.5 GB/s need at least {human_seconds(times[0])} and {human_seconds(times[1])}.",
    }


def in_words(counts):
    return {how: amount(count) for how, count in counts.items()}


def amount(count):
    """Bytes in powers of ten; exact as long as one can read them."""
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if count >= unit:
            return f"{count / unit:,.4g} {name}"
    return f"{round(count):,} B"


def tables(record):
    columns = ("GPUs", "busiest: server", "busiest: ring", "in all: server", "in all: ring")
    rows = []
    for n in GPUS:
        shown = record["cases"][key(n, 9_600)]
        rows.append((n, *shown["written"]["busiest"].values(), *shown["written"]["total"].values()))
    return [grid("One step, 9,600 bytes of weights", columns, rows)]
