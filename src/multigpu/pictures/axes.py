"""Pictures with two axes: `curves` along a setting, and the `roofline` of a machine."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil, floor, log10
from statistics import fmean

from multigpu.pictures.picture import Picture, element, line, round_step, text, tooltip, width_of
from multigpu.pictures.units import human_count

WIDTH, SIZE = 420.0, 11.5
TOP = 20.0  # of the field between the axes
DASHES = (None, "7 4", "2 3", "9 3 2 3")
TRIANGLE = ((0, -5), (4.6, 3.4), (-4.6, 3.4))
DIAMOND = ((0, -5), (5, 0), (0, 5), (-5, 0))
PEN = {"stroke": "var(--ink)", "stroke_width": 1.6}

muted = partial(text, size=SIZE, class_="muted")


def _height(left: float, right: float, y: float, label: str) -> str:
    """A line across the field, and its number beside it."""
    across = line(left, y, right, y, stroke="var(--edge)")
    return across + muted(left - 6, y, label, text_anchor="end")


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
    marks, not by color: colors belong to GPUs and ranks.
    """
    values = [value for points in series.values() for some in points.values() for value in some]
    places = sorted({place for points in series.values() for place in points})
    ticks = _ticks(min(values), max(values))
    left, foot, inset = 44.0, 160.0, 14.0
    right = WIDTH - max(width_of(name, size=SIZE) for name in series) - 12

    def x(place: float) -> float:
        gap = (right - left - 2 * inset) / max(1, len(places) - 1)
        return left + inset + places.index(place) * gap

    def y(value: float) -> float:
        return TOP + (ticks[-1] - value) / (ticks[-1] - ticks[0]) * (foot - TOP)

    decimals = max(0, -floor(log10(ticks[1] - ticks[0]) + 1e-9))
    body = [muted(0, 2, figure)]
    body += [_height(left, right, y(tick), f"{tick:.{decimals}f}") for tick in ticks]
    body += [text(x(p), foot + 14, f"{p:g}", size=SIZE, text_anchor="middle") for p in places]
    body.append(muted((left + right) / 2, foot + 32, along, text_anchor="middle"))
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
        free = ends[name] + 15
    for number, (name, means) in enumerate(every.items()):
        path = " ".join(f"{x(place):.1f},{y(mean):.1f}" for place, mean in means.items())
        dashes = DASHES[number % 4]
        body.append(element("polyline", points=path, stroke_dasharray=dashes, fill="none", **PEN))
        for place, mean in means.items():
            at, spread = x(place), series[name][place]
            whisker = line(at, y(min(spread)), at, y(max(spread)), stroke="var(--ink)")
            mark = _mark(number, at, y(mean))
            body.append(tooltip(f"{name}: {mean:.{digits}f} at {place:g}", whisker, mark))
        body.append(text(right + 8, ends[name], name, size=SIZE))
        said = ", ".join(f"{mean:.{digits}f} at {along} {p:g}" for p, mean in means.items())
        says.append(f"{name}: {said}.")
        cells = (f"{means[p]:>9.{digits}f}" if p in means else " " * 9 for p in places)
        lines.append(f"{name:{names}}{''.join(cells)}")
    return Picture(title, body, size=(WIDTH, 200.0), says=says, lines=lines)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from at most `low` to at least `high`: about four steps."""
    if high == low:
        low, high = low - 0.5, high + 0.5
    step = round_step((high - low) / 4)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _mark(number: int, x: float, y: float) -> str:
    """The first curve's are filled circles, then come hollow squares, triangles, diamonds."""
    look = {"fill": "var(--paper)" if number else "var(--ink)", **PEN}
    if number % 4 == 0:
        return element("circle", cx=x, cy=y, r=4, **look)
    if number % 4 == 1:
        return element("rect", x=x - 3.6, y=y - 3.6, width=7.2, height=7.2, **look)
    corners = TRIANGLE if number % 4 == 2 else DIAMOND
    return element("polygon", points=" ".join(f"{x + a:g},{y + b:g}" for a, b in corners), **look)


def roofline(
    points: Mapping[str, tuple[float, float]],
    *,
    flops_per_second: float,
    bytes_per_second: float,
    title: str,
) -> Picture:
    """Draw `{name: (FLOPs per byte, FLOP/s)}` below the roof of a machine, with logarithmic axes.

    The roof is `bytes_per_second` times FLOPs per byte, and at most `flops_per_second`. Raises
    ValueError for a point that is not above zero.
    """
    for name, point in points.items():
        if min(point) <= 0:
            raise ValueError(f"{name}: both must be above zero to be drawn, got {point}")
    ridge = flops_per_second / bytes_per_second
    intensities = [ridge / 4, ridge * 4, *(intensity for intensity, _ in points.values())]
    first, last = floor(log10(min(intensities))), ceil(log10(max(intensities)))
    rates = [flops_per_second, *(rate for _, rate in points.values())]
    low, high = floor(log10(min(rates))), ceil(log10(max(rates)))
    left, right, foot = 52.0, 410.0, 196.0

    def x(intensity: float) -> float:
        return left + (log10(intensity) - first) / (last - first) * (right - left)

    def y(rate: float) -> float:
        return foot - (log10(max(rate, 10**low)) - low) / max(1, high - low) * (foot - TOP)

    body = [muted(0, 2, "FLOP/s")]
    for power in range(low, high + 1):
        body.append(_height(left, right, y(10**power), human_count(10**power)))
    for power in range(first, last + 1):
        at, label = x(10.0**power), f"{10.0**power:g}"
        body.append(text(at, foot + 14, label, size=SIZE, text_anchor="middle"))
    middle = (left + right) / 2
    body.append(muted(middle, foot + 32, "FLOPs per byte", text_anchor="middle"))
    begin = max(10.0**first, 10.0**low / bytes_per_second)
    roof = [(begin, begin * bytes_per_second), (ridge, flops_per_second)]
    corners = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in [*roof, (10.0**last, roof[-1][1])])
    body.append(element("polyline", points=corners, fill="none", **PEN))
    says = [
        f"The roof is {human_count(bytes_per_second, 'B/s')} times FLOPs per byte, and at most"
        f" {human_count(flops_per_second, 'FLOP/s')} from {ridge:.3g} FLOPs per byte on."
    ]
    widest = max(map(len, points), default=0)
    lines = [f"{'':{widest}}  FLOPs per byte    FLOP/s  of the roof"]
    free = TOP
    for name, (intensity, rate) in sorted(points.items(), key=lambda each: -each[1][1]):
        at, height = x(intensity), y(rate)
        said = f"{name}: {intensity:.3g} FLOPs per byte, {human_count(rate, 'FLOP/s')}"
        circle = element("circle", cx=at, cy=height, r=4, fill="var(--paper)", **PEN)
        body.append(tooltip(said, circle))
        beside = max(height + 10, free)  # below the mark, and below the name before
        free = beside + 14
        # Names point inwards, away from the edge and from faster marks.
        aside, anchor = (-8, "end") if at > middle else (8, None)
        body.append(text(at + aside, beside, name, size=SIZE, text_anchor=anchor))
        share = rate / min(flops_per_second, intensity * bytes_per_second)
        says.append(f"{said}, {share:.0%} of the roof.")
        lines.append(f"{name:{widest}}  {intensity:14.3g}  {human_count(rate):>8}  {share:11.0%}")
    return Picture(title, body, size=(WIDTH, 240.0), says=says, lines=lines)
