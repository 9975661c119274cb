"""``multigpu monitor``: what the GPUs and the course's processes are doing, until q or Ctrl-C."""

import argparse
import io
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console, Group
from rich.live import Live

from multigpu.checking.catalog import CourseNotFound, find_course
from multigpu.commands.course_processes import Lookout
from multigpu.commands.monitor_tables import Shares, page
from multigpu.commands.seen_process import CourseProcess
from multigpu.commands.showing import console
from multigpu.devices.monitor import GpuStatus, memory_by_process, snapshot
from multigpu.pictures.units import human_bytes

FIRST_LOOK = 0.5  # seconds between the two looks that CPU time is measured in
PIPED = 1000  # columns: nothing is cut off
OTHER_LINES = 6  # on a screen, besides the rows of the two tables


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu monitor``."""
    parser.add_argument("--once", action="store_true", help="look once, print it, and end")
    parser.add_argument(
        "--interval",
        type=seconds,
        default=1.0,
        metavar="SECONDS",
        help="seconds between two looks (default 1)",
    )
    parser.add_argument("--json", action="store_true", help="look once, and print it as JSON")


def seconds(text: str) -> float:
    """An interval that can be meant.  Raises argparse.ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: give a number of seconds from 0.1 to 3600")
    return value


@dataclass(frozen=True)
class Look:
    """All there is to show at one moment."""

    machine: str
    gpus: list[GpuStatus]
    processes: list[CourseProcess]
    shares: Shares  # bytes on each GPU, by process

    def shown(self, out: Console, *, rows: int | None = None, hint: str = "") -> Group:
        """As it is printed."""
        machine = self.machine + hint
        return page(machine, self.gpus, self.processes, self.shares, console=out, rows=rows)

    def as_json(self) -> str:
        """The same for programs."""
        processes = [
            asdict(each) | {"gpu_memory": self.shares.get(each.pid, {})} for each in self.processes
        ]
        gpus = [asdict(gpu) for gpu in self.gpus]
        return json.dumps({"gpus": gpus, "processes": processes}, indent=2)


def run(options: argparse.Namespace) -> int:
    """Show the course's processes once, or until somebody has seen enough."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # rather a "?" than no table
    out, lookout = console(), Lookout(course_root())
    look(lookout)  # CPU time is measured from one look to the next
    watched = sys.stdout.isatty()  # rich takes a pipe for a terminal where FORCE_COLOR is set
    if options.json or options.once or not watched:
        time.sleep(FIRST_LOOK)
        now = look(lookout)
        if options.json:
            print(now.as_json())
        else:
            if not watched:
                out.width = PIPED
            out.print(now.shown(out))
        return 0
    with read_keys() as pressed:
        watch(lookout, out, options.interval, pressed)
    return 0


def watch(lookout: Lookout, out: Console, interval: float, pressed: Callable[[float], str]) -> None:
    """Look again after every `interval` seconds until q or Ctrl-C."""
    wait = min(FIRST_LOOK, interval)
    with Live(console=out, screen=True, auto_refresh=False) as live:
        try:
            while pressed(wait) not in ("q", "Q"):
                now, wait = look(lookout), interval
                rows = max(1, out.height - OTHER_LINES - len(now.gpus))
                live.update(now.shown(out, rows=rows, hint=" · q ends"), refresh=True)
        except KeyboardInterrupt:  # it is the usual way to end this
            return


def look(lookout: Lookout) -> Look:
    """What is to be seen now."""
    memory = psutil.virtual_memory()
    machine = (
        f"{os.cpu_count()} cores, {psutil.cpu_percent():.0f} % busy"
        f" · memory {human_bytes(memory.total - memory.available)} of {human_bytes(memory.total)}"
    )
    return Look(machine, snapshot(), lookout.look(), memory_by_process())


def course_root() -> Path | None:
    """The course's folder, if we are in it: its scripts are then known by their place."""
    try:
        return find_course(Path.cwd()).root
    except CourseNotFound:
        return None


def wait_without_keys(wait: float) -> str:
    """Nobody can press a key."""
    time.sleep(wait)
    return ""


@contextmanager
def read_keys() -> Iterator[Callable[[float], str]]:
    """``pressed(seconds)``: the key that is pressed within that time, else ""."""
    if not sys.stdin.isatty():
        yield wait_without_keys
        return
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    usual = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)  # keys come at once, without Enter; Ctrl-C still ends

    def pressed(wait: float) -> str:
        ready, _, _ = select.select([keyboard], [], [], wait)
        return os.read(keyboard, 1).decode(errors="replace") if ready else ""

    try:
        yield pressed
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, usual)
