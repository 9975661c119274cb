"""Who holds which sums, and who sends which to whom: one step of an all-reduce as a picture.

A tensor is cut into parts, one column each. In a rank's lane a part is a box with a place for every
rank: coloured once that rank's numbers are in the sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from multigpu.pictures.legend import legend
from multigpu.pictures.palette import colour
from multigpu.pictures.picture import Picture
from multigpu.pictures.svg import element, rectangle, text, tooltip
from multigpu.pictures.units import human_bytes

LEFT, WIDTH = 54.0, 366.0
HEAD, LANE = 20.0, 46.0
TRACKS = 34.0  # to the right of every box: room for the arrows

Sum = frozenset[int]  # whose numbers are in it


@dataclass(frozen=True)
class PartSent:
    """A message: `parts` says which columns it carries, and whose numbers are in each."""

    source: int
    target: int
    bytes: int
    parts: dict[int, Sum]

    def __str__(self) -> str:
        carried = ", ".join(f"part {part} ({added(sum_)})" for part, sum_ in self.parts.items())
        amount = human_bytes(self.bytes)
        return f"rank {self.source} → rank {self.target}: {carried}, {amount}"


def added(ranks: Sum) -> str:
    """A sum in letters: `0+2`."""
    return "+".join(map(str, sorted(ranks))) or "nothing"


def parts(
    before: Sequence[Sequence[Sum]],
    after: Sequence[Sequence[Sum]],
    messages: Sequence[PartSent] = (),
    *,
    title: str = "",
) -> Picture:
    """Draw what the ranks hold `after` a step, what is new since `before`, and what travelled.

    `after[rank][part]` is the set of ranks whose numbers are in that sum.
    """
    world, columns = len(after), len(after[0])
    column = (WIDTH - LEFT) / columns
    body = [
        text(LEFT + part * column + 2, 8, f"part {part}", size=11, class_="muted")
        for part in range(columns)
    ]
    for rank in range(world):
        body.append(_lane(rank))
        body += [
            _box(rank, part, before[rank][part], after[rank][part], world=world, column=column)
            for part in range(columns)
        ]
    most = max((message.bytes for message in messages), default=1)
    for message in messages:
        body += [_arrow(message, part, column=column, most=most) for part in message.parts]
    bottom = HEAD + world * LANE + 4
    kinds = ["communication"] if messages else []
    key, key_height = legend(kinds, WIDTH, notes=["0+1: a sum of the numbers of ranks 0 and 1"])
    said = [f"rank {rank} holds {', '.join(map(added, held))}." for rank, held in enumerate(after)]
    sent = [f"{message}." for message in messages]
    return Picture(
        title=title,
        description=" ".join((*sent, *said)),
        width=WIDTH,
        height=bottom + key_height,
        body="".join(body) + f'<g transform="translate(0 {bottom:g})">{key}</g>',
        lines=tuple(f"  {line}" for line in (*map(str, messages), *said)),
    )


def _top(rank: int) -> float:
    return HEAD + rank * LANE


def _lane(rank: int) -> str:
    y = _top(rank) + 1
    return (
        rectangle(0.5, y, WIDTH - 1, LANE - 4, rx=7, fill="var(--band)")
        + rectangle(0.5, y, 5, LANE - 4, rx=2.5, fill=colour(rank))
        + text(11, y + (LANE - 4) / 2, f"rank {rank}", size=11.5, class_="strong")
    )


def _box(rank: int, part: int, old: Sum, new: Sum, *, world: int, column: float) -> str:
    x, y = LEFT + part * column + 2, _top(rank) + 6
    wide = column - TRACKS
    place = wide / world
    pieces = [rectangle(x, y, wide, 17, rx=2, fill="var(--paper)", stroke="var(--line)")]
    for owner in sorted(new):
        class_ = None if owner in old else "arrives"
        pieces.append(
            rectangle(x + owner * place + 1, y + 1.5, place - 2, 14, rx=1,
                      fill=colour(owner), class_=class_)
        )  # fmt: skip
    if len(new) == world:  # the sum of all: what everybody wants
        pieces.append(
            rectangle(x, y, wide, 17, rx=2, fill="none", stroke="var(--ink)", stroke_width=2)
        )
    voice = "strong" if len(new) == world else "muted"
    label = text(x, y + 26, "all" if len(new) == world else added(new), size=10.5, class_=voice)
    return tooltip(f"rank {rank}, part {part}: {added(new)}", *pieces, label)


def _arrow(message: PartSent, part: int, *, column: float, most: int) -> str:
    """Out of the sender's lane, along a track of its own, into the receiver's."""
    source, target = message.source, message.target
    x = LEFT + (part + 1) * column - TRACKS + 3
    track = x + 8 + 4.0 * (max(source, target) % 5)
    start, end = _top(source) + 15.0, _top(target) + 15.0
    shift = 3.0 if source < target else -3.0
    way = f"M{x:g} {start + shift:g}H{track:g}V{end - shift:g}H{x + 5:g}"
    width = 2 + 1.6 * message.bytes / most
    line = {"d": way, "stroke": colour(source), "stroke_width": width, "fill": "none"}
    middle = _top(target) - 2 if source < target else _top(target) + LANE - 2  # between lanes
    return tooltip(
        str(message),
        element("path", **line, stroke_opacity=0.35),
        element("path", **line, stroke_dasharray="5 3", class_="stripes"),
        element("path", d=f"M{x - 1:g} {end - shift:g}l6.5 -4v8z", fill=colour(source)),
        rectangle(-4, -4, 8, 8, rx=2, fill=colour(source), class_="packet",
                  stroke="var(--line)", style=f'offset-path:path("{way}");opacity:0'),
        text(track - 3, middle, human_bytes(message.bytes), size=10, class_="strong",
             text_anchor="end", style="paint-order:stroke;stroke:var(--band);stroke-width:3px"),
    )  # fmt: skip
