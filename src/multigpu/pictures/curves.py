"""Curves: how a figure changes along a setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil, floor, log10
from statistics import fmean

from multigpu.pictures.picture import Picture, element, line, round_step, text, tooltip, width_of

WIDTH, HEIGHT = 420.0, 200.0
LEFT, TOP, FOOT = 44.0, 20.0, 160.0  # the field of the curves: from LEFT, from TOP to FOOT
INSET = 14.0  # of the first and the last place
SIZE = 11.5
NAME_HEIGHT = 15.0  # names keep this distance
DASHES = (None, "7 4", "2 3", "9 3 2 3")
TRIANGLE = ((0, -5), (4.6, 3.4), (-4.6, 3.4))
DIAMOND = ((0, -5), (5, 0), (0, 5), (-5, 0))


def curves(
    series: Mapping[str, Mapping[float, Sequence[float]]],
    *,
    title: str,
    along: str,
    figure: str,
    digits: int = 3,
) -> Picture:
    """Draw `{name: {place: [values]}}`: a mark at the mean, a thin line from smallest to largest.

    Places are drawn in rising order at equal distances, whatever their values. `along` names them,
    `figure` the values, of which `digits` decimals are written. Lines differ by their dashes and
    marks, not by color: colors belong to GPUs and ranks. Raises ValueError if a curve has no place,
    or a place no value.
    """
    if not series or not all(points and all(points.values()) for points in series.values()):
        raise ValueError(f"every curve needs a value at each of its places, got {dict(series)}")
    values = [value for points in series.values() for some in points.values() for value in some]
    places = sorted({place for points in series.values() for place in points})
    ticks = _ticks(min(values), max(values))
    right = WIDTH - max(width_of(name, size=SIZE) for name in series) - 12

    def x(place: float) -> float:
        gap = (right - LEFT - 2 * INSET) / max(1, len(places) - 1)
        return LEFT + INSET + places.index(place) * gap

    def y(value: float) -> float:
        return TOP + (ticks[-1] - value) / (ticks[-1] - ticks[0]) * (FOOT - TOP)

    quiet = partial(text, size=SIZE, class_="muted")
    body = [quiet(0, 2, figure)]
    decimals = max(0, -floor(log10(ticks[1] - ticks[0]) + 1e-9))
    for tick in ticks:
        body.append(line(LEFT, y(tick), right, y(tick), stroke="var(--edge)"))
        body.append(quiet(LEFT - 6, y(tick), f"{tick:.{decimals}f}", text_anchor="end"))
    body += [text(x(p), FOOT + 14, f"{p:g}", size=SIZE, text_anchor="middle") for p in places]
    body.append(quiet((LEFT + right) / 2, FOOT + 32, along, text_anchor="middle"))
    corner = f"{along}, {figure}"
    names = max(map(len, (corner, *series)))
    says, lines = [], [f"{corner:{names}}" + "".join(f"{place:>9g}" for place in places)]
    every = {  # the means, in rising order of the places
        name: {place: fmean(points[place]) for place in sorted(points)}
        for name, points in series.items()
    }
    ends = {name: y(list(means.values())[-1]) for name, means in every.items()}
    free = 0.0
    for name in sorted(ends, key=ends.__getitem__):  # moved down where two names would overlap
        ends[name] = max(ends[name], free)
        free = ends[name] + NAME_HEIGHT
    for number, (name, means) in enumerate(every.items()):
        dashes = DASHES[number % 4]
        pen = {"stroke": "var(--ink)", "stroke_width": 1.6}
        path = " ".join(f"{x(place):.1f},{y(mean):.1f}" for place, mean in means.items())
        body.append(element("polyline", points=path, stroke_dasharray=dashes, fill="none", **pen))
        look = {"fill": "var(--paper)" if number else "var(--ink)", **pen}
        for place, mean in means.items():
            at, height, spread = x(place), y(mean), series[name][place]
            if number % 4 == 0:
                mark = element("circle", cx=at, cy=height, r=4, **look)
            elif number % 4 == 1:
                mark = element("rect", x=at - 3.6, y=height - 3.6, width=7.2, height=7.2, **look)
            else:
                corners = TRIANGLE if number % 4 == 2 else DIAMOND
                at_corners = " ".join(f"{at + a:g},{height + b:g}" for a, b in corners)
                mark = element("polygon", points=at_corners, **look)
            whisker = line(at, y(min(spread)), at, y(max(spread)), stroke="var(--ink)")
            body.append(tooltip(f"{name}: {mean:.{digits}f} at {place:g}", whisker, mark))
        body.append(text(right + 8, ends[name], name, size=SIZE))
        said = ", ".join(f"{mean:.{digits}f} at {along} {p:g}" for p, mean in means.items())
        says.append(f"{name}: {said}.")
        cells = (f"{means[p]:>9.{digits}f}" if p in means else " " * 9 for p in places)
        lines.append(f"{name:{names}}{''.join(cells)}")
    return Picture(title, body, size=(WIDTH, HEIGHT), says=says, lines=lines)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from at most `low` to at least `high`: about four steps."""
    if high == low:
        low, high = low - 0.5, high + 0.5
    step = round_step((high - low) / 4)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]
