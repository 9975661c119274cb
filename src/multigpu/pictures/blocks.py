"""Who holds what before and after: a column for each rank, a block for each value.

A block has the colour of the rank that its value comes from. A sum of several ranks' values has
bands in the colours of all of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from multigpu.pictures.legend import legend
from multigpu.pictures.palette import colour, ink_on
from multigpu.pictures.picture import Picture
from multigpu.pictures.svg import chip, line, rectangle, text, tooltip

COLUMN, CHIP = 96.0, 78.0
BLOCK, BLOCK_ROW = 24.0, 28.0
BAND = 8.0
HEAD, HEADING = 34.0, 24.0


@dataclass(frozen=True)
class Block:
    """A value: what is written on it, and the ranks whose values are in it."""

    label: str
    owners: tuple[int, ...]

    @classmethod
    def of(cls, held: Any) -> "Block":
        """From an owner, a set of owners (their sum), None (nothing) or a pair (label, owners)."""
        if held is None:
            return cls("", ())
        if isinstance(held, tuple) and len(held) == 2 and isinstance(held[0], str):
            return cls(held[0], cls.of(held[1]).owners)
        if isinstance(held, int):
            return cls(str(held), (held,))
        if isinstance(held, Iterable) and not isinstance(held, str):
            owners = tuple(sorted(held))
            return cls("+".join(map(str, owners)), owners)
        raise ValueError(
            "a block is a rank, a set of ranks, None or a pair (label, ranks), "
            f"for example 0, {{0, 1}} or ('a', 0); got {held!r}"
        )

    def __str__(self) -> str:
        return self.label or "nothing"


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

    Raises ValueError if the two speak of different numbers of ranks, or a value is none of these.
    """
    if len(before) != len(after):
        raise ValueError(f"before has {len(before)} ranks and after has {len(after)}")
    rows = [
        (name, [[Block.of(each) for each in held] for held in held_by_rank])
        for name, held_by_rank in (("before", before), ("after", after))
    ]
    width = max(COLUMN * len(before), 2 * COLUMN)
    y, parts = HEAD, []
    for name, held_by_rank in rows:
        parts.append(_heading(name, y, width))
        y += HEADING + 6
        for rank, held in enumerate(held_by_rank):
            x = (rank + 0.5) * COLUMN
            parts += [
                _block(each, x, y + (i + 0.5) * BLOCK_ROW, rank=rank, name=name)
                for i, each in enumerate(held)
            ]
        y += max((len(held) for held in held_by_rank), default=0) * BLOCK_ROW + 6
    owners = {owner for _, held in rows for blocks in held for b in blocks for owner in b.owners}
    columns = [(rank + 0.5) * COLUMN for rank in range(len(before))]
    lifelines = [line(x, HEAD / 2, x, y, stroke="var(--line)", stroke_opacity=0.4) for x in columns]
    chips = [chip(x, 13, CHIP, f"rank {rank}", colour(rank)) for rank, x in enumerate(columns)]
    sums = any(len(b.owners) > 1 for _, held in rows for blocks in held for b in blocks)
    notes = ["colour: the rank it comes from"] if owners else []
    key, key_height = legend([], width, notes=notes + ["bands: a sum"] * sums)
    return Picture(
        title=title,
        description=" ".join(_sentences(rows)),
        width=width,
        height=y + 6 + key_height,
        body="".join(
            [*lifelines, *chips, *parts, f'<g transform="translate(0 {y + 6:g})">{key}</g>']
        ),
        lines=tuple(_text_lines(rows)),
    )


def _heading(name: str, y: float, width: float) -> str:
    band = rectangle(0, y, width, HEADING, rx=4, fill="var(--band)")
    return band + text(8, y + HEADING / 2, name, class_="strong")


def _block(block: Block, x: float, y: float, *, rank: int, name: str) -> str:
    left, top = x - CHIP / 2, y - BLOCK / 2
    said = f"rank {rank} {name}: {block}"
    if not block.owners:
        hollow = {"fill": "var(--paper)", "stroke": "var(--line)", "stroke_dasharray": "3 3"}
        label = text(x, y, block.label, size=12, class_="muted", text_anchor="middle")
        return tooltip(said, rectangle(left, top, CHIP, BLOCK, rx=4, **hollow), label)
    if len(block.owners) == 1:
        fill = colour(block.owners[0])
        bar = rectangle(left, top, CHIP, BLOCK, rx=2, fill=fill, stroke="var(--line)")
        style = f"fill:{ink_on(fill)}"
        return tooltip(
            said, bar, text(x, y, block.label, size=12, text_anchor="middle", style=style)
        )
    wide = CHIP / len(block.owners)
    bands = [
        rectangle(left + i * wide, top + BLOCK - BAND, wide, BAND, fill=colour(owner))
        for i, owner in enumerate(block.owners)
    ]
    return tooltip(
        said,
        rectangle(left, top, CHIP, BLOCK, fill="var(--paper)"),
        *bands,
        rectangle(left, top, CHIP, BLOCK, rx=2, fill="none", stroke="var(--line)"),
        text(x, y - BAND / 2, block.label, size=12, text_anchor="middle"),
    )


def _sentences(rows: Sequence[tuple[str, list[list[Block]]]]) -> Iterable[str]:
    for name, held_by_rank in rows:
        for rank, held in enumerate(held_by_rank):
            values = ", ".join(map(str, held)) or "nothing"
            yield f"{name.capitalize()}, rank {rank} holds {values}."


def _text_lines(rows: Sequence[tuple[str, list[list[Block]]]]) -> Iterable[str]:
    ranks = range(len(rows[0][1]))
    cells = [
        [" ".join(f"[{block.label or ' '}]" for block in held) or "-" for held in held_by_rank]
        for _, held_by_rank in rows
    ]
    wide = [max(6, *(len(row[rank]) for row in cells)) for rank in ranks]
    yield "          " + "  ".join(f"{f'rank {rank}':<{wide[rank]}}" for rank in ranks).rstrip()
    for (name, _), row in zip(rows, cells, strict=True):
        yield f"  {name:<8}" + "  ".join(f"{row[rank]:<{wide[rank]}}" for rank in ranks).rstrip()
