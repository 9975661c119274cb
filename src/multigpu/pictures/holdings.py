"""Who holds what: `holdings` before and after a collective, `chunks` of a tensor that travel in an
all-reduce.

What comes from a rank has its color; a sum of several ranks' values has all of theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from multigpu.pictures.palette import color
from multigpu.pictures.picture import (
    Picture,
    chip,
    line,
    rank_lane,
    rectangle,
    text,
    text_on,
    tooltip,
    traveling,
)
from multigpu.pictures.units import human_bytes

COLUMN, CHIP = 96.0, 78.0
BLOCK, BLOCK_ROW = 24.0, 28.0
HEAD, HEADING = 34.0, 24.0


@dataclass(frozen=True)
class Block:
    """A value: what is written on it, and the ranks whose values are in it."""

    label: str
    owners: tuple[int, ...]

    @classmethod
    def of(cls, held: Any) -> "Block":
        """From an owner, a set of owners (their sum), None (nothing) or a pair (label, owners)."""
        label, held = held if isinstance(held, tuple) else (None, held)
        if isinstance(held, set | frozenset):
            owners = tuple(sorted(held))
        else:
            owners = () if held is None else (held,)
        return cls("+".join(map(str, owners)) if label is None else label, owners)

    def drawn(self, x: float, y: float, says: str) -> str:
        """The block in the middle of (x, y): hollow, in one color, or with a band for each."""
        box = (x - CHIP / 2, y - BLOCK / 2, CHIP, BLOCK)
        if not self.owners:
            hollow = partial(rectangle, *box, rx=4, fill="var(--paper)", stroke="var(--line)")
            label = text(x, y, self.label, size=12, class_="muted", text_anchor="middle")
            return tooltip(says, hollow(stroke_dasharray="3 3"), label)
        if len(self.owners) == 1:
            fill = color(self.owners[0])
            solid = rectangle(*box, rx=2, fill=fill, stroke="var(--line)")
            return tooltip(says, solid, text_on(fill, x, y, self.label, size=12))
        wide, band = CHIP / len(self.owners), 8.0
        bands = (
            rectangle(box[0] + i * wide, box[1] + BLOCK - band, wide, band, fill=color(owner))
            for i, owner in enumerate(self.owners)
        )
        return tooltip(
            says,
            rectangle(*box, fill="var(--paper)"),
            *bands,
            rectangle(*box, rx=2, fill="none", stroke="var(--line)"),
            text(x, y - band / 2, self.label, size=12, text_anchor="middle"),
        )


def holdings(
    before: Sequence[Sequence[Any]],
    after: Sequence[Sequence[Any]],
    *,
    title: str = "Who holds what, before and after",
) -> Picture:
    """Draw what each rank holds `before` and `after` a collective.

    Both have a list per rank. A value in it is the rank that it comes from (`2`), the set of ranks
    whose values were added (`{0, 1}`), None for an empty place, or a pair of a label and one of
    these (`("w", 0)`)::

        everyone = {0, 1, 2}
        holdings([[0], [1], [2]], [[everyone]] * 3, title="all_reduce")
        holdings([[0], [1], [2]], [[0, 1, 2]] * 3, title="all_gather")
    """
    rows = {
        name: [[Block.of(each) for each in held] for held in held_by_rank]
        for name, held_by_rank in (("before", before), ("after", after))
    }
    columns = [(rank + 0.5) * COLUMN for rank in range(len(before))]
    width = max(COLUMN * len(before), 2 * COLUMN)
    y, body, said = HEAD, [], []
    for name, held_by_rank in rows.items():
        body.append(rectangle(0, y, width, HEADING, rx=4, fill="var(--band)"))
        body.append(text(8, y + HEADING / 2, name, class_="strong"))
        y += HEADING + 6
        for rank, blocks in enumerate(held_by_rank):
            names = [block.label or "nothing" for block in blocks]
            said.append(f"{name.capitalize()}, rank {rank} holds {', '.join(names) or 'nothing'}.")
            body += [
                block.drawn(columns[rank], y + (i + 0.5) * BLOCK_ROW, f"rank {rank} {name}: {what}")
                for i, (block, what) in enumerate(zip(blocks, names, strict=True))
            ]
        y += max(map(len, held_by_rank), default=0) * BLOCK_ROW + 6
    lifelines = [line(x, HEAD / 2, x, y, stroke="var(--line)", stroke_opacity=0.4) for x in columns]
    chips = [chip(x, 13, CHIP, f"rank {rank}", color(rank)) for rank, x in enumerate(columns)]
    counts = [len(b.owners) for held in rows.values() for blocks in held for b in blocks]
    cells = [
        [" ".join(f"[{block.label or ' '}]" for block in blocks) or "-" for blocks in held_by_rank]
        for held_by_rank in rows.values()
    ]
    wide = [max(6, *map(len, column)) for column in zip(*cells, strict=True)]
    table = zip(
        ("          ", *(f"  {name:<8}" for name in rows)),
        ([f"rank {rank}" for rank in range(len(before))], *cells),
        strict=True,
    )
    return Picture(
        title,
        [*lifelines, *chips, *body],
        size=(width, y + 6),
        says=said,
        lines=[
            (head + "  ".join(f"{cell:<{w}}" for cell, w in zip(row, wide, strict=True))).rstrip()
            for head, row in table
        ],
        notes=["color: the rank it comes from"] * any(counts)
        + ["bands: a sum"] * any(count > 1 for count in counts),
    )


Contributors = frozenset[int]  # to a sum: the ranks whose numbers are in it
LANE_LEFT, LANES_WIDTH = 54.0, 366.0
LANES_TOP, LANE = 20.0, 46.0
TRACKS = 34.0  # to the right of every box: room for the arrows


@dataclass(frozen=True)
class ChunksSent:
    """A message: `chunks` says which columns it carries, and whose numbers are in each."""

    source: int
    target: int
    bytes: int
    chunks: dict[int, Contributors]

    def __str__(self) -> str:
        carried = ", ".join(f"chunk {chunk} ({added(sum_)})" for chunk, sum_ in self.chunks.items())
        amount = human_bytes(self.bytes)
        return f"rank {self.source} → rank {self.target}: {carried}, {amount}"


def added(ranks: Contributors) -> str:
    """A sum as text: `0+2`."""
    return "+".join(map(str, sorted(ranks))) or "nothing"


def chunks(
    before: Sequence[Sequence[Contributors]],
    after: Sequence[Sequence[Contributors]],
    messages: Sequence[ChunksSent],
) -> Picture:
    """Draw what the ranks hold `after` a step, what is new since `before`, and what traveled.

    A tensor is cut into chunks, one column each. In a rank's lane a chunk is a box with a place for
    every rank: colored once that rank's numbers are in the sum. `after[rank][chunk]` is the set of
    ranks whose numbers are in that sum.
    """
    world, columns = len(after), len(after[0])
    column = (LANES_WIDTH - LANE_LEFT) / columns
    body = [
        text(LANE_LEFT + chunk * column + 2, 8, f"chunk {chunk}", size=11, class_="muted")
        for chunk in range(columns)
    ]
    for rank in range(world):
        y = LANES_TOP + rank * LANE + 1
        body.append(rank_lane(rank, y, LANES_WIDTH, LANE - 4))
        for chunk in range(columns):
            says = f"rank {rank}, chunk {chunk}: {added(after[rank][chunk])}"
            x, wide = LANE_LEFT + chunk * column + 2, column - TRACKS
            box = _box(before[rank][chunk], after[rank][chunk], x, y + 5, wide, world=world)
            body.append(tooltip(says, *box))
    most = max((message.bytes for message in messages), default=1)
    for message in messages:
        for chunk in message.chunks:
            x = LANE_LEFT + (chunk + 1) * column - TRACKS + 3
            body.append(_arrow(message, x, width=2 + 1.6 * message.bytes / most))
    held = [f"rank {rank} holds {', '.join(map(added, sums))}." for rank, sums in enumerate(after)]
    return Picture(
        "",
        body,
        size=(LANES_WIDTH, LANES_TOP + world * LANE + 4),
        says=[*(f"{message}." for message in messages), *held],
        lines=[f"  {row}" for row in (*map(str, messages), *held)],
        kinds=["communication"] if messages else [],
        notes=["0+1: a sum of the numbers of ranks 0 and 1"],
    )


def _box(
    old: Contributors, new: Contributors, x: float, y: float, wide: float, *, world: int
) -> list[str]:
    """A chunk: a place for each rank, and a rim around the sum of all, the result."""
    place, whole = wide / world, len(new) == world
    pieces = [rectangle(x, y, wide, 17, rx=2, fill="var(--paper)", stroke="var(--line)")]
    pieces += [
        rectangle(x + owner * place + 1, y + 1.5, place - 2, 14, rx=1, fill=color(owner),
                  class_=None if owner in old else "arrives")
        for owner in sorted(new)
    ]  # fmt: skip
    if whole:
        rim = {"fill": "none", "stroke": "var(--ink)", "stroke_width": 2}
        pieces.append(rectangle(x, y, wide, 17, rx=2, **rim))
    voice, label = ("strong", "all") if whole else ("muted", added(new))
    return [*pieces, text(x, y + 26, label, size=10.5, class_=voice)]


def _arrow(message: ChunksSent, x: float, *, width: float) -> str:
    """Out of the sender's lane, along a track of its own, into the receiver's."""
    source, target = message.source, message.target
    track = x + 8 + 4.0 * (max(source, target) % 5)
    start, end = (LANES_TOP + rank * LANE + 15 for rank in (source, target))
    shift = 3.0 if source < target else -3.0
    way = f"M{x:g} {start + shift:g}H{track:g}V{end - shift:g}H{x + 5:g}"
    tip = f"M{x - 1:g} {end - shift:g}l6.5 -4v8z"
    middle = LANES_TOP + target * LANE + (-2 if source < target else LANE - 2)  # between lanes
    return tooltip(
        str(message),
        traveling(way, tip, color(source), width),
        text(track - 3, middle, human_bytes(message.bytes), size=10, class_="strong",
             text_anchor="end", style="paint-order:stroke;stroke:var(--band);stroke-width:3px"),
    )  # fmt: skip
