"""How `multigpu monitor` looks: the machine on one line, a table of GPUs, a table of processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from multigpu.commands.seen_process import CourseProcess
from multigpu.devices.monitor import GpuStatus
from multigpu.pictures.palette import colour
from multigpu.pictures.units import human_bytes

BAR = 12  # columns
NOTHING = "-"
WIDE = 100  # columns of a terminal that has room for command lines
QUIET = ("server", "child")  # kinds that only serve the others

Shares = Mapping[int, Mapping[int, int]]  # process: GPU: bytes


def page(
    machine: str,
    gpus: Sequence[GpuStatus],
    processes: Sequence[CourseProcess],
    shares: Shares,
    *,
    console: Console,
    rows: int | None = None,
) -> Group:
    """Everything, one below the other; at most `rows` processes, if that is given."""
    parts: list[Any] = [Text(machine, "dim"), Text()]
    parts += [gpu_table(gpus, console)] if gpus else [Text("No NVIDIA GPU here: processes only.")]
    parts.append(Text())
    if not processes:
        return Group(*parts, Text("No process of the course is running."))
    shown = processes[:rows]
    parts.append(process_table(shown, shares, console, gpus=bool(gpus)))
    if len(shown) < len(processes):
        parts.append(Text(f"… and {len(processes) - len(shown)} more", "dim"))
    return Group(*parts)


def gpu_table(gpus: Sequence[GpuStatus], console: Console) -> Table:
    """A row per GPU, in its colour: how busy, how full, how hot."""
    table = plain_table()
    table.add_column("GPU", no_wrap=True)
    table.add_column("")  # its name gives way where it is narrow
    for name in ("busy", "memory"):
        table.add_column(name, no_wrap=True)
    for name in ("°C", "watts"):
        table.add_column(name, justify="right", no_wrap=True)
    for gpu in gpus:
        ink = colour(gpu.index)
        table.add_row(
            Text(f"GPU {gpu.index}", f"bold {ink}"),
            in_one_line(gpu.name, ""),
            bar(gpu.utilisation, 100, f"{gpu.utilisation} %", ink, console),
            bar(gpu.memory_used, gpu.memory_total, fullness(gpu), ink, console),
            known(gpu.temperature),
            known(gpu.power if gpu.power is None else round(gpu.power)),
        )
    return table


def fullness(gpu: GpuStatus) -> str:
    """Its memory in words."""
    if gpu.memory_used is None:
        return NOTHING
    total = "" if gpu.memory_total is None else f" of {human_bytes(gpu.memory_total)}"
    return f"{human_bytes(gpu.memory_used)}{total}"


def bar(value: float | None, whole: float | None, words: str, ink: str, console: Console) -> Text:
    """`value` as a bar filled against `whole`, with the words beside it."""
    if value is None or not whole:
        return Text(words if value is not None else NOTHING)
    full, empty = ("━", "─") if can_show(console, "━─") else ("=", "-")
    filled = max(0, min(BAR, round(BAR * value / whole)))
    return Text.assemble((full * filled, ink), (empty * (BAR - filled), "dim"), f" {words}")


def process_table(
    processes: Sequence[CourseProcess], shares: Shares, console: Console, *, gpus: bool
) -> Table:
    """A row per process, those that another one started below it, moved to the right."""
    table = plain_table()
    table.add_column("process")  # this and the last one give way where it is narrow
    table.add_column("rank", no_wrap=True)
    for name in ("pid", "CPU", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    if gpus:
        table.add_column("GPU memory", no_wrap=True)
    table.add_column("running", justify="right", no_wrap=True)
    if with_command := console.width >= WIDE:
        table.add_column("command")
    deep = depths(processes)
    branch = "└ " if can_show(console, "└") else "- "
    for process in processes:
        depth = deep[process.pid]
        name = "  " * (depth - 1) + (branch if depth else "") + process.what
        table.add_row(
            in_one_line(name, "dim" if process.kind in QUIET else "bold"),
            rank_of(process),
            str(process.pid),
            NOTHING if process.cpu is None else f"{process.cpu:.0f} %",
            NOTHING if process.memory is None else human_bytes(process.memory),
            *([on_gpus(shares.get(process.pid, {}))] if gpus else []),
            age(process.seconds),
            *([in_one_line(process.command, "dim")] if with_command else []),
        )
    return table


def in_one_line(words: str, style: str) -> Text:
    """Text that is cut off where there is no room for it."""
    return Text(words, style, no_wrap=True, overflow="ellipsis")


def plain_table() -> Table:
    """Columns without lines, as wide as the terminal."""
    return Table(box=None, padding=(0, 2, 0, 0), header_style="dim")


def depths(processes: Sequence[CourseProcess]) -> dict[int, int]:
    """How many of `processes` stand above each."""
    found: dict[int, int] = {}
    for process in processes:  # a parent comes before what it started
        found[process.pid] = found[process.parent] + 1 if process.parent in found else 0
    return found


def rank_of(process: CourseProcess) -> Text:
    """ "2 of 4", in the colour of rank 2."""
    if process.rank is None:
        return Text()
    ink = f"bold {colour(process.rank)}"
    return Text.assemble((f"rank {process.rank}", ink), (f" of {process.world_size}", "dim"))


def on_gpus(shares: Mapping[int, int]) -> Text:
    """What a process has on each GPU."""
    parts = [
        Text.assemble((f"GPU {index}", colour(index)), f" {human_bytes(memory)}")
        for index, memory in sorted(shares.items())
    ]
    return Text(" · ").join(parts) if parts else Text(NOTHING)


def age(seconds: float) -> str:
    """How long, in the two largest units: 12 s, 3 min 5 s, 2 h 10 min."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def known(value: float | None) -> str:
    """A number, or a dash for one that is not known."""
    return NOTHING if value is None else str(value)


def can_show(console: Console, signs: str) -> bool:
    """Whether the terminal's encoding has these signs."""
    try:
        signs.encode(console.encoding)
    except UnicodeEncodeError:
        return False
    return True
