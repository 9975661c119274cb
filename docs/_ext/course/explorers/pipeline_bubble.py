"""A pipeline's schedule by stages, micro-batches and order, with its bubble and what it holds.

The numbers come from ``pipeline_bubble_recording.py``, the words stand here.
"""

from course.explorers.cases import choice, grid, key, recorded
from multigpu.pictures import palette
from multigpu.pictures.timeline import PALE

SUMMARY = "Bubble and micro-batches in flight, as tables"
RANKS, MICRO_BATCHES = (2, 4, 8), (1, 2, 4, 8, 16)
SCHEDULES = ("GPipe", "1F1B", "interleaved")


def record(env):
    """Every schedule, step by step."""
    cases = recorded(env, "pipeline_bubble")
    for name, case in cases.items():
        case["says"] = sentence(name, case)
    return {
        "title": "The bubble, to try",
        "draw": "schedule",
        "choices": [
            choice("ranks", "Ranks", RANKS, 4),
            choice("micro_batches", "Micro-batches", MICRO_BATCHES, 8),
            choice("schedule", "Schedule", SCHEDULES, "1F1B"),
        ],
        "inks": [inks(palette.color(rank)) for rank in range(max(RANKS))],
        "cases": cases,
    }


def inks(color):
    """Of a forward and of a backward: the fill, the ink on it, and the rim of both."""
    pale = palette.tint(color, PALE)
    return {"f": [pale, palette.ink_on(pale)], "b": [color, palette.ink_on(color)]}


def sentence(name, case):
    ranks, micro_batches, schedule = name.split()
    p, m, rounds = int(ranks), int(micro_batches), case["rounds"]
    formula = f", ({p} − 1)/({f'{rounds} · ' if rounds > 1 else ''}{m} + {p} − 1)"
    if abs(case["idle"] - case["formula"]) > 1e-9:
        formula = ". The formula holds only with at least as many micro-batches as ranks"
    begin = schedule[0].upper() + schedule[1:]
    return (
        f"{begin}, {p} ranks, {micro(m)}: {case['idle']:.0%} is bubble{formula}. A step takes "
        f"{case['time']:g}, of which {3 * m} is work. In flight: {most(case, m)}."
    )


def micro(count):
    return f"{count} micro-batch{'es' if count > 1 else ''}"


def most(case, m):
    """What the ranks hold at most."""
    held, rounds = case["held"], case["rounds"]
    low, high = min(held), max(held)
    span = f"{high}" if low == high else f"{low} to {high}"
    return f"{span} of {rounds * m}" + (", each through half of a rank's layers" * (rounds > 1))


def tables(record):
    columns = ("Ranks and schedule", *(f"m = {m}" for m in MICRO_BATCHES))
    rows = [
        (f"{p}, {name}", *(cell(record["cases"][key(p, m, name)], m) for m in MICRO_BATCHES))
        for p in RANKS
        for name in SCHEDULES
    ]
    return [grid("Bubble; micro-batches in flight on the rank with most", columns, rows)]


def cell(case, m):
    return f"{case['idle']:.0%}; {max(case['held'])} of {case['rounds'] * m}"
