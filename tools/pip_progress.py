"""Run pip, show one calm line of what it is at, and keep everything it said in a log."""

import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

DOWNLOAD = re.compile(r"(?:Downloading|Using cached) (?:\S*/)?(?P<name>[^/\s]+?)-\d\S*")
COLLECT = re.compile(r"Collecting (?P<name>[A-Za-z0-9_.\-]+)")
PROGRESS = re.compile(r"Progress (?P<done>\d+) of (?P<total>\d+)")
SHOWN_EVERY = 15.0  # seconds, where lines cannot be overwritten
MEGABYTE = 10**6


class Doing:
    """What pip is doing now, read from its output line by line."""

    def __init__(self) -> None:
        self.packages: set[str] = set()
        self.now = "starting"
        self._name = ""

    def read(self, line: str) -> None:
        """Take note of one line of pip's output."""
        if match := COLLECT.match(line.strip()):
            self.packages.add(match["name"].lower())
            self.now = f"{len(self.packages)} packages found, now {match['name']}"
        elif match := DOWNLOAD.match(line.strip()):
            self._name = match["name"]
            self.now = f"downloading {self._name}"
        elif match := PROGRESS.match(line):
            done, total = int(match["done"]) / MEGABYTE, int(match["total"]) / MEGABYTE
            self.now = f"downloading {self._name}: {done:.0f} of {total:.0f} MB"
        elif line.startswith("Installing collected packages"):
            self.now = f"unpacking, {line.count(',') + 1} in all"


def run_pip(python: Path, arguments: Sequence[str], *, log: Path) -> bool:
    """Run ``pip install`` with ``arguments``; whether it succeeded. Its output goes to ``log``."""
    command = [str(python), "-m", "pip", "install", *arguments]
    doing = Doing()
    screen = Screen(sys.stdout)
    pip = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with open(log, "a") as kept, pip:
        assert pip.stdout is not None
        print("$", *command, file=kept)
        for line in _lines_and_ticks(pip.stdout):
            doing.read(line)
            if line and not PROGRESS.match(line):
                kept.write(line)
            screen.show(doing.now)
    screen.clear()
    return pip.returncode == 0


class Screen:
    """A single line that is overwritten in a terminal, and now and then a line elsewhere."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._overwrites = out.isatty()
        self._began = self._shown = time.monotonic()

    def show(self, text: str) -> None:
        """Show ``text`` with the seconds since the beginning, if it is time to."""
        now = time.monotonic()
        if now - self._shown < (0.2 if self._overwrites else SHOWN_EVERY):
            return
        self._shown = now
        line = f"    {now - self._began:4.0f} s  {text}"
        self._out.write(f"\r\x1b[2K{line[:78]}" if self._overwrites else f"{line}\n")
        self._out.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._overwrites:
            self._out.write("\r\x1b[2K")
            self._out.flush()


def _lines_and_ticks(stream: IO[str]) -> Iterator[str]:
    """The lines of ``stream``, and an empty one for each second without any."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=1)
        except queue.Empty:
            line = ""
        if line is None:
            return
        yield line
