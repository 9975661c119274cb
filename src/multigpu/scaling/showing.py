"""A comparison as a table and as a picture, with the published numbers beside it."""

from __future__ import annotations

from multigpu.pictures import Picture, Table, human_bytes
from multigpu.pictures.charts import Duration, Group, durations
from multigpu.pictures.units import human_seconds
from multigpu.ranks.errors import counted
from multigpu.scaling.published import PublishedTimes, published_times
from multigpu.scaling.results import Comparison, Row

NUMBERS = frozenset(
    {"step", "spread", "rows/s", "speed-up", "efficiency", "rows per GPU", "memory"}
    | {"all-reduce"}
)
WIDE = ("ran on", "rows per GPU", "efficiency")  # for these a terminal has no room


def table_of(comparison: Comparison) -> Table:
    """One row per candidate: time, speed-up, the final metric, memory, communication."""
    metric = comparison.metric
    columns = (
        "mode", "ran on", "rows per GPU", "step", "spread", "rows/s",
        "speed-up", "efficiency", metric, "memory", "all-reduce",
    )  # fmt: skip
    rows = tuple(cells_of(comparison, row) for row in comparison.rows)
    return Table(title_of(comparison), columns, rows, numbers=NUMBERS | {metric})


def narrow(table: Table) -> Table:
    """The table without its widest columns, for a terminal of 80 columns."""
    kept = [i for i, name in enumerate(table.columns) if name not in WIDE]
    return Table(
        table.title,
        tuple(table.columns[i] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in table.rows),
        numbers=table.numbers,
    )


def cells_of(comparison: Comparison, row: Row) -> tuple[str, ...]:
    """The cells of one row."""
    up, part = comparison.speed_up(row), comparison.efficiency(row)
    final = row.figures.get(comparison.metric)
    return (
        str(row.candidate),
        row.where,
        str(comparison.rows_per_gpu(row)),
        human_seconds(row.step_seconds),
        spread_of(row),
        f"{comparison.rows_per_second(row):,.0f}",
        "–" if up is None else ratio(up),
        "–" if part is None else f"{part:.0%}",
        "–" if final is None else f"{final:.4f}",
        human_bytes(max(row.peak_bytes)) if row.peak_bytes else "–",
        "–" if row.communication is None else f"{row.communication:.0%}",
    )


def ratio(speed_up: float) -> str:
    """A speed-up with two digits at least: 1.69, 0.048."""
    return f"{speed_up:.2f}" if speed_up >= 0.1 else f"{speed_up:.2g}"


def spread_of(row: Row) -> str:
    """The fastest and the slowest round: `1.95–2.51 ms`."""
    low, unit = human_seconds(row.fastest).split()
    high = human_seconds(row.slowest)
    return f"{low}–{high}" if high.endswith(f" {unit}") else f"{low} {unit}–{high}"


def title_of(comparison: Comparison) -> str:
    """What all rows have in common, in a line."""
    settings = comparison.settings
    return (
        f"{settings.work}: {counted(settings.batch_size, 'row')} a step in every mode; "
        f"{counted(settings.steps, 'step')} after {settings.warmup} of warm-up;\n"
        "speed-up: median of the rounds' ratios"
    )


def rounds_of(comparison: Comparison) -> str:
    """How often it was measured, what a speed-up is, the threads, whether the machine was busy."""
    rounds = counted(len(comparison.rows[0].rounds), "round")
    threads = counted(comparison.settings.threads, "thread")
    busy = ""
    if comparison.busy:
        busy = f"; busy with other work (load {comparison.settings.load:.1f} before it began)"
    ups = "" if comparison.single is None else " (×: median of the rounds' ratios)"
    return f"median of {rounds} in turn{ups}, {threads} per GPU{busy}"


def agreement_of(comparison: Comparison) -> str:
    """Whether all rows have trained the same thing."""
    largest = comparison.largest_difference
    if len(comparison.rows) == 1:
        return "Only one row: there is nothing to compare it with."
    if comparison.trained_alike:
        return f"All rows end with the same loss (they differ by {largest:.0e} of it at most)."
    return (
        f"The final losses differ by up to {largest:.1%}: these rows did not train exactly the "
        "same. With dropout or BatchNorm that is so, because each rank draws and averages by "
        "itself; without them something is wrong, and do not compare the times."
    )


def picture_of(comparison: Comparison, *, published: bool) -> Picture:
    """Bars of the time of a step; what it ran on stands with every bar."""
    single = comparison.single
    measured = Group(
        f"{comparison.settings.work}, measured {comparison.settings.date}",
        [bar_of(comparison, row) for row in comparison.rows],
        note=f"{comparison.machine}; {comparison.settings.batch_size} rows a step, "
        f"{rounds_of(comparison)}",
        against=None if single is None else single.step_seconds,
    )
    groups = [measured, *published_groups()] if published else [measured]
    return durations(groups, title="Time of one step by mode", line_at="what is compared with")


def bar_of(comparison: Comparison, row: Row) -> Duration:
    """One row as a bar."""
    up = comparison.speed_up(row)
    faster = "" if up is None or row is comparison.single else f" · {ratio(up)} ×"
    return Duration(
        str(row.candidate),
        row.step_seconds,
        value=f"{human_seconds(row.step_seconds)}{faster}",
        note=row.where,
        low=row.fastest,
        high=row.slowest,
        communication=row.communication or 0.0,
        devices=row.candidate.gpus,
    )


def published_picture() -> Picture:
    """The published times alone, relative to what they are compared with."""
    return durations(
        published_groups(), title="Published times of two GPUs", line_at="what is compared with"
    )


def published_groups() -> list[Group]:
    """A group for each suite; a bar is a time relative to `against`, which the dashed line is."""
    suites: dict[str, list[PublishedTimes]] = {}
    for times in published_times():
        suites.setdefault(times.suite, []).append(times)
    return [
        Group(
            f"Published: {suite}, {rows[0].hardware}",
            [bar for times in rows for bar in published_bars(times)],
            note=f"Time relative to {rows[0].against}. {'; '.join(remarks_of(rows))}.",
            against=1.0,
            compact=True,
        )
        for suite, rows in suites.items()
    ]


def remarks_of(rows: list[PublishedTimes]) -> list[str]:
    """What has to be said of a suite: of remarks that begin with one another, the longest."""
    remarks = {times.remark for times in rows}
    return sorted(one for one in remarks if not any(one in other for other in remarks - {one}))


def published_bars(times: PublishedTimes) -> list[Duration]:
    """A bar for each mode that is compared."""
    one = times.seconds[times.against]
    return [
        Duration(
            f"{times.work}: {mode}",
            seconds / one,
            value=f"{seconds:g} s · {times.speed_up(mode):.2f} ×",
            devices=2,
        )
        for mode, seconds in times.seconds.items()
        if mode != times.against
    ]
