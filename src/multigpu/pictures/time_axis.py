"""The axis of time below lanes: three to six round moments, and their lines."""

from collections.abc import Callable
from math import floor, log10

from multigpu.pictures.svg import line, text
from multigpu.pictures.units import human_seconds

LANES = 340.0  # width of the time axis


def time_axis(
    total: float,
    scale: float,
    *,
    left: float,
    bottom: float,
    write: Callable[[float], str] | None = None,
) -> str:
    """The axis from 0 to `total`, `scale` units long for each second, below lanes.

    `write` says how a moment is written; without it, in seconds.
    """
    write = write or _short
    parts = [line(left, bottom, left + LANES, bottom, stroke="var(--line)")]
    for moment in _ticks(total):
        x = left + moment * scale
        parts.append(line(x, 0, x, bottom + 4, stroke="var(--edge)"))
        parts.append(
            text(x, bottom + 13, write(moment), size=11, class_="muted", text_anchor="middle")
        )
    return "".join(parts)


def _ticks(total: float) -> list[float]:
    """Round moments from 0 to `total`: three to six of them."""
    if total <= 0:
        return [0.0]
    rough = total / 4
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [i * step for i in range(floor(total / step + 1e-9) + 1)]


def _short(moment: float) -> str:
    """A round moment without idle zeros: `5 ms`, not `5.00 ms`."""
    amount, unit = human_seconds(moment).split()
    return f"{amount.rstrip('0').rstrip('.') if '.' in amount else amount} {unit}"
