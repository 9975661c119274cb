"""A roofline: how fast operations are, by how much they compute for each byte they move."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor, log10

from multigpu.pictures.picture import Picture, element, line, text, tooltip
from multigpu.pictures.units import human_count

WIDTH, HEIGHT = 420.0, 240.0
LEFT, RIGHT, TOP, FOOT = 52.0, 410.0, 20.0, 196.0  # the field
SIZE = 11.5
NAME_HEIGHT = 14.0  # names keep this distance


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

    def x(intensity: float) -> float:
        return LEFT + (log10(intensity) - first) / (last - first) * (RIGHT - LEFT)

    def y(rate: float) -> float:
        return FOOT - (log10(max(rate, 10**low)) - low) / max(1, high - low) * (FOOT - TOP)

    body = [text(0, 2, "FLOP/s", size=SIZE, class_="muted")]
    for power in range(low, high + 1):
        body.append(line(LEFT, y(10**power), RIGHT, y(10**power), stroke="var(--edge)"))
        label = human_count(10**power)
        body.append(
            text(LEFT - 6, y(10**power), label, size=SIZE, class_="muted", text_anchor="end")
        )
    for power in range(first, last + 1):
        at, label = x(10.0**power), f"{10.0**power:g}"
        body.append(text(at, FOOT + 14, label, size=SIZE, text_anchor="middle"))
    middle = (LEFT + RIGHT) / 2
    body.append(
        text(middle, FOOT + 32, "FLOPs per byte", size=SIZE, class_="muted", text_anchor="middle")
    )
    begin = max(10.0**first, 10.0**low / bytes_per_second)
    roof = [(begin, begin * bytes_per_second), (ridge, flops_per_second)]
    corners = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in [*roof, (10.0**last, roof[-1][1])])
    pen = {"stroke": "var(--ink)", "stroke_width": 1.6}
    body.append(element("polyline", points=corners, fill="none", **pen))
    says = [
        f"The roof is {human_count(bytes_per_second, 'B/s')} times FLOPs per byte, and at most"
        f" {human_count(flops_per_second, 'FLOP/s')} from {ridge:.3g} FLOPs per byte on."
    ]
    widest = max(map(len, points), default=0)
    lines = [f"{'':{widest}}  FLOPs per byte    FLOP/s  of the roof"]
    free = TOP
    for name, (intensity, rate) in sorted(points.items(), key=lambda each: -each[1][1]):
        roof_there = min(flops_per_second, intensity * bytes_per_second)
        at, height = x(intensity), y(rate)
        mark = element("circle", cx=at, cy=height, r=4, fill="var(--paper)", **pen)
        beside = max(height + 10, free)  # below the mark, and below the name before
        free = beside + NAME_HEIGHT
        left = at > middle  # names point inwards, away from the edge and from faster marks
        label = text(
            at + (-8 if left else 8), beside, name, size=SIZE, text_anchor="end" if left else None
        )
        said = f"{name}: {intensity:.3g} FLOPs per byte, {human_count(rate, 'FLOP/s')}"
        body.append(tooltip(said, mark))
        body.append(label)
        says.append(f"{said}, {rate / roof_there:.0%} of the roof.")
        cells = f"{intensity:14.3g}  {human_count(rate):>8}  {rate / roof_there:11.0%}"
        lines.append(f"{name:{widest}}  {cells}")
    return Picture(title, body, size=(WIDTH, HEIGHT), says=says, lines=lines)
