"""Curves: how a figure changes along a setting, one line for each way of choosing another.

Lines differ by their dashes and marks, not by colour: colours belong to GPUs and ranks. Each has
its name at its right end.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, floor, log10
from statistics import fmean

from multigpu.pictures.picture import Picture
from multigpu.pictures.svg import element, line, rectangle, text, tooltip, width_of

WIDTH, HEIGHT = 420.0, 200.0
LEFT, TOP, FOOT = 44.0, 20.0, 160.0  # the field of the curves: from LEFT, from TOP to FOOT
INSET = 14.0  # of the first and the last place
SIZE = 11.5
NAME_HEIGHT = 15.0  # names keep this distance
DASHES = (None, "7 4", "2 3", "9 3 2 3")
TICKS = 4
LINE = "var(--ink)"

Points = Mapping[float, Sequence[float]]  # values at each place


@dataclass(frozen=True)
class _Field:
    """Where places and values are drawn."""

    places: list[float]
    ticks: list[float]
    right: float

    def x(self, place: float) -> float:
        gap = (self.right - LEFT - 2 * INSET) / max(1, len(self.places) - 1)
        return LEFT + INSET + self.places.index(place) * gap

    def y(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return TOP + (high - value) / (high - low) * (FOOT - TOP)

    def axes(self, along: str, figure: str) -> Iterator[str]:
        """Lines at round values, the places, and what both are."""
        quiet = partial(text, size=SIZE, class_="muted")
        yield quiet(0, 2, figure)
        decimals = max(0, -floor(log10(self.ticks[1] - self.ticks[0]) + 1e-9))
        for tick in self.ticks:
            yield line(LEFT, self.y(tick), self.right, self.y(tick), stroke="var(--edge)")
            yield quiet(LEFT - 6, self.y(tick), f"{tick:.{decimals}f}", text_anchor="end")
        for place in self.places:
            yield text(self.x(place), FOOT + 14, f"{place:g}", size=SIZE, text_anchor="middle")
        yield quiet((LEFT + self.right) / 2, FOOT + 32, along, text_anchor="middle")


def curves(
    series: Mapping[str, Points], *, title: str, along: str, figure: str, digits: int = 3
) -> Picture:
    """Draw `{name: {place: [values]}}`: a mark at the mean, a thin line from smallest to largest.

    Places stand at equal distances in rising order, whatever lies between them. `along` names them,
    `figure` the values, of which `digits` decimals are written. Raises ValueError if a curve has no
    place, or a place no value.
    """
    if not series or not all(points and all(points.values()) for points in series.values()):
        raise ValueError(f"every curve needs a value at each of its places, got {dict(series)}")
    values = [value for points in series.values() for some in points.values() for value in some]
    field = _Field(
        places=sorted({place for points in series.values() for place in points}),
        ticks=_ticks(min(values), max(values)),
        right=WIDTH - max(width_of(name, size=SIZE) for name in series) - 12,
    )
    means = {  # in rising order of the places
        name: {place: fmean(points[place]) for place in sorted(points)}
        for name, points in series.items()
    }
    body = list(field.axes(along, figure))
    heights = _apart([field.y(list(mean.values())[-1]) for mean in means.values()])
    for number, (name, height) in enumerate(zip(series, heights, strict=True)):
        body.append(_curve(number, name, series[name], field, digits))
        body.append(text(field.right + 8, height, name, size=SIZE))
    said = (
        f"{name}: {', '.join(f'{mean:.{digits}f} at {along} {p:g}' for p, mean in points.items())}."
        for name, points in means.items()
    )
    return Picture(
        title=title,
        description=" ".join(said),
        width=WIDTH,
        height=HEIGHT,
        body="".join(body),
        lines=tuple(_table(means, field.places, f"{along}, {figure}", digits)),
    )


def _curve(number: int, name: str, points: Points, field: _Field, digits: int) -> str:
    """One line with its marks; `number` says which dashes and which marks."""
    means = {place: fmean(points[place]) for place in sorted(points)}
    path = " ".join(f"{field.x(place):.1f},{field.y(mean):.1f}" for place, mean in means.items())
    look = {"fill": "none", "stroke": LINE, "stroke_width": 1.6}
    parts = [element("polyline", points=path, stroke_dasharray=DASHES[number % 4], **look)]
    for place, mean in means.items():
        x, spread = field.x(place), points[place]
        parts.append(
            tooltip(
                f"{name}: {mean:.{digits}f} at {place:g}",
                line(x, field.y(min(spread)), x, field.y(max(spread)), stroke=LINE),
                _mark(number, x, field.y(mean)),
            )
        )
    return "".join(parts)


def _mark(number: int, x: float, y: float) -> str:
    """A disc, a square, a triangle or a diamond."""
    look = {"fill": LINE if number == 0 else "var(--paper)", "stroke": LINE, "stroke_width": 1.6}
    if number % 4 == 0:
        return element("circle", cx=x, cy=y, r=4, **look)
    if number % 4 == 1:
        return rectangle(x - 3.6, y - 3.6, 7.2, 7.2, **look)
    triangle, diamond = [(0, -5), (4.6, 3.4), (-4.6, 3.4)], [(0, -5), (5, 0), (0, 5), (-5, 0)]
    corners = triangle if number % 4 == 2 else diamond
    return element("polygon", points=" ".join(f"{x + a:g},{y + b:g}" for a, b in corners), **look)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from at most `low` to at least `high`."""
    if high == low:
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / TICKS
    power = 10.0 ** floor(log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _apart(heights: Sequence[float]) -> list[float]:
    """The heights, moved down where two names would lie on each other."""
    moved, free = list(heights), float("-inf")
    for number in sorted(range(len(heights)), key=lambda number: heights[number]):
        moved[number] = max(heights[number], free)
        free = moved[number] + NAME_HEIGHT
    return moved


def _table(
    means: Mapping[str, Mapping[float, float]], places: Sequence[float], corner: str, digits: int
) -> Iterator[str]:
    wide = max(map(len, (corner, *means)))
    yield f"{corner:{wide}}" + "".join(f"{place:>9g}" for place in places)
    for name, points in means.items():
        cells = (f"{points[p]:>9.{digits}f}" if p in points else " " * 9 for p in places)
        yield f"{name:{wide}}" + "".join(cells)
