"""A pipeline's schedule: a lane for each rank, a block for each micro-batch that it works on.

Forward is pale, backward is full; the number on a block is the micro-batch. Where a lane is empty
the rank idles: the bubble. Predicted and recorded schedules are drawn alike.
"""

from collections.abc import Iterable, Sequence
from math import floor
from typing import Any

from multigpu.pictures.legend import legend
from multigpu.pictures.palette import HOST, colour, ink_on, tint
from multigpu.pictures.picture import Picture
from multigpu.pictures.svg import moment, rectangle, text, width_of
from multigpu.pictures.time_axis import LANES, time_axis
from multigpu.pictures.units import human_seconds

PALE = 0.4  # strength of a forward's colour
LANE, BLOCK = 34.0, 24.0
LEFT = 56.0
SIZE = 11.0
TEXT_LANE = 64  # characters


def schedule(
    steps: Iterable[Any], *, title: str = "Who computes which micro-batch", seconds: bool = True
) -> Picture:
    """Draw steps with `rank`, `kind` (`forward` or `backward`), `micro_batch`, `start` and `end`.

    `seconds=False`: the times are of no unit, as in a schedule whose costs are 1 and 2. A step that
    has a `stage` other than its rank is of an interleaved schedule: its number gets a mark for each
    round (0, 0\u2032).

    Raises ValueError for a step that ends before it starts.
    """
    given = list(steps)
    for step in given:
        if step.end < step.start:
            raise ValueError(f"{step}: ends at {step.end} before its start {step.start}")
    first = min((step.start for step in given), default=0.0)
    total = max((step.end for step in given), default=0.0) - first
    scale = LANES / total if total else 0.0
    ranks = max((step.rank for step in given), default=-1) + 1
    bottom = ranks * LANE + 2
    write = _moment if seconds else _plain
    axis = time_axis(total, scale, left=LEFT, bottom=bottom, write=None if seconds else _plain)
    body = [_lane(rank) for rank in range(ranks)]
    body += [_block(step, first, scale, ranks=ranks, write=write) for step in given]
    key, key_height = _key()
    return Picture(
        title=title,
        description=" ".join(f"{_said(step, ranks, first, write)}." for step in given) or "Empty.",
        width=LEFT + LANES + 20,
        height=bottom + 26 + key_height,
        body="".join([axis, *body, f'<g transform="translate(0 {bottom + 26:g})">{key}</g>']),
        lines=tuple(_text_lines(given, ranks, first=first, total=total, seconds=seconds)),
    )


def _lane(rank: int) -> str:
    y = rank * LANE
    return text(0, y + LANE / 2, f"rank {rank}", class_="strong") + rectangle(
        LEFT, y + LANE / 2 - BLOCK / 2, LANES, BLOCK, rx=3, fill="var(--band)"
    )


def _block(step: Any, first: float, scale: float, *, ranks: int, write: Any) -> str:
    full = colour(step.rank)
    fill = tint(full, PALE) if step.kind == "forward" else full
    x, wide = LEFT + (step.start - first) * scale, max((step.end - step.start) * scale, 1.0)
    top = step.rank * LANE + LANE / 2 - BLOCK / 2
    rim = min(wide / 8, 0.75)  # neighbours are told apart
    block = rectangle(
        x + rim, top, wide - 2 * rim, BLOCK, rx=min(3.0, wide / 4), fill=fill, stroke=full
    )
    shapes, label = [block], _label(step, ranks)
    if width_of(label, size=SIZE) <= wide:
        place = {"x": x + wide / 2, "y": top + BLOCK / 2}
        style = f"fill:{ink_on(fill)}"
        shapes.append(text(**place, content=label, size=SIZE, text_anchor="middle", style=style))
    said, of = _said(step, ranks, first, write), f"micro-batch {step.micro_batch}"
    return moment(f"rank {step.rank}", step.start - first, said, *shapes, of=of)


def _label(step: Any, ranks: int) -> str:
    """The micro-batch, with a mark for each time the pipeline has come round."""
    rounds = int(getattr(step, "stage", step.rank)) // ranks
    return str(step.micro_batch) + "\u2032" * rounds


def _said(step: Any, ranks: int, first: float, write: Any) -> str:
    time = f"from {write(step.start - first)} to {write(step.end - first)}"
    stage = getattr(step, "stage", step.rank)
    where = "" if stage == step.rank else f", stage {stage}"
    return f"rank {step.rank}{where}: {step.kind} {step.micro_batch}, {time}"


def _key() -> tuple[str, float]:
    """The legend: a pale and a full block."""
    parts, x = [], 0.0
    for name, fill in (("forward", tint(HOST, PALE)), ("backward", HOST)):
        parts.append(rectangle(x, 4, 26, 10, rx=2, fill=fill, stroke=HOST))
        parts.append(text(x + 32, 9, name, size=11.5, class_="muted"))
        x += 46 + width_of(name, size=11.5)
    notes, height = legend([], LANES, notes=["number: the micro-batch", "empty: idle"])
    return "".join(parts) + f'<g transform="translate(0 18)">{notes}</g>', height + 18


def _moment(value: float) -> str:
    return human_seconds(value)


def _plain(value: float) -> str:
    return f"{value:g}"


def _text_lines(
    steps: Sequence[Any], ranks: int, *, first: float, total: float, seconds: bool
) -> Iterable[str]:
    wide, write = TEXT_LANE, _moment if seconds else _plain
    if not seconds and 0 < total <= TEXT_LANE:  # every unit as wide as the next
        wide = round(total * (TEXT_LANE // total))
    for rank in range(ranks):
        row = ["·"] * wide
        for step in (step for step in steps if step.rank == rank and total):
            begin = floor((step.start - first) / total * wide + 0.5)
            end = max(begin + 1, floor((step.end - first) / total * wide + 0.5))
            fill = "░" if step.kind == "forward" else "█"
            number = str(step.micro_batch) if end - begin > len(str(step.micro_batch)) else ""
            row[begin:end] = number.ljust(end - begin, fill)[: wide - begin]
        yield f"  rank {rank}  {''.join(row)}"
    if ranks:
        yield f"  {'':6}  0 to {write(total)};  ░ forward  █ backward  · idle"
