"""The processes of the course on this machine: training, ranks, notebooks, checks.

A process is told by how it was started: its command line and its first environment, which the
system keeps. Ranks of `run_ranks` are forked and have both from their server; which of them is
which shows in the order in which they were forked.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from multigpu.commands.process_tree import in_order, numbered
from multigpu.commands.seen_process import CHECK_SERVER, RANKS_SERVER, CourseProcess
from multigpu.ranks.process_tree import MARK

SERVERS = {RANKS_SERVER: "server of run_ranks", CHECK_SERVER: "server of checks"}
AGENTS = ("torchrun", "torch.distributed.run")
KERNELS = ("ipykernel_launcher", "ipykernel")


@dataclass(frozen=True)
class Start:
    """How a process was started."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: str  # where it works now

    @property
    def module(self) -> str:
        """`python -m MODULE`: its name; "" where there is none."""
        for word, following in itertools.pairwise(self.command[1:]):
            if word == "-m" or not word.startswith("-"):  # what follows belongs to the program
                return following if word == "-m" else ""
        return ""

    @property
    def is_ours(self) -> bool:
        """Whether it runs a program of this Python environment."""
        program = shutil.which(self.command[0], path=self.environment.get("PATH"))
        return program is not None and Path(program).is_relative_to(sys.prefix)

    @property
    def after_module(self) -> Sequence[str]:
        """The words after the module."""
        words = list(self.command)
        return words[words.index("-m") + 2 :] if self.module else ()

    @property
    def rank(self) -> tuple[int, int] | None:
        """torchrun's rank and world size."""
        rank, size = (self.environment.get(name, "") for name in ("RANK", "WORLD_SIZE"))
        return (int(rank), int(size)) if rank.isdigit() and size.isdigit() else None


def recognise(start: Start, root: Path | None) -> tuple[str, str] | None:
    """Kind and words for a process that was started like this; None: not one of the course.

    `root` is the course's folder: a script in it belongs to the course, too.
    """
    module, name = start.module, command_name(start)
    if module in SERVERS:
        return "server", SERVERS[module]
    if name is not None:
        what = f"multigpu {name}".rstrip()
        return ("rank" if start.rank else "command"), what
    if module in KERNELS and start.is_ours:
        notebook = start.environment.get("JPY_SESSION_NAME", "")
        return "notebook", Path(notebook).name or "a notebook"
    if start.environment.get(MARK):
        return "child", words_of(start)
    called = {module, *(Path(word).name for word in start.command[:2])}
    if called & {*AGENTS} and start.is_ours:
        return "torchrun", "torchrun"
    if script := own_script(start, root):
        return ("rank" if start.rank else "script"), script
    if start.rank and start.is_ours:
        return "rank", words_of(start)
    return None


def command_name(start: Start) -> str | None:
    """NAME of a process that runs `multigpu NAME` or `python -m multigpu NAME`."""
    words = list(start.command)
    if start.module == "multigpu":
        rest = start.after_module
    elif any(Path(word).name == "multigpu" for word in words[:2]):
        rest = words[1 + (Path(words[0]).name != "multigpu") :]
    else:
        return None
    return next((word for word in rest if not word.startswith("-")), "")


def own_script(start: Start, root: Path | None) -> str | None:
    """The script in the course's folder that a process runs, for people."""
    words = [word for word in start.command[1:] if not word.startswith("-")]
    if root is None or not words or not words[0].endswith(".py") or not start.is_ours:
        return None
    path = Path(start.folder, words[0])
    installed = Path(sys.prefix)  # the environment may lie in the course's folder
    if not path.is_relative_to(root) or path.is_relative_to(installed):
        return None
    return str(path.relative_to(root))


def words_of(start: Start) -> str:
    """A command line as it is shown: programs by their names, without their folders."""
    return " ".join(Path(word).name if os.path.isabs(word) else word for word in start.command)


@dataclass(frozen=True)
class Known:
    """A process as it was at the last look; `seen` is None for those that are not the course's."""

    started: float
    command: list[str]
    seen: CourseProcess | None


class Lookout:
    """Looks at the course's processes again and again; between two looks, CPU time is measured."""

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self._known: dict[int, Known] = {}

    def look(self) -> list[CourseProcess]:
        """The processes as they are now, each after the one that started it."""
        known = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):  # it has ended, or is somebody else's
                if process.pid != os.getpid() and (command := process.cmdline()):
                    known[process.pid] = self._one(process, command)
        self._known = known
        return in_order(numbered({pid: each.seen for pid, each in known.items() if each.seen}))

    def _one(self, process: psutil.Process, command: list[str]) -> Known:
        """What is known of a process, with what it uses now."""
        old = self._known.get(process.pid)
        if old is None or (old.started, old.command) != (process.create_time(), command):
            seen = self._first_look(process, command)
        else:
            seen = old.seen and replace(old.seen, cpu=process.cpu_percent())
        if seen is not None:
            seen = replace(seen, parent=process.ppid(), memory=fair_share(process))
        return Known(process.create_time(), command, seen)

    def _first_look(self, process: psutil.Process, command: list[str]) -> CourseProcess | None:
        """A process that was not there, or was something else; None: not one of the course."""
        start = Start(command, process.environ(), process.cwd())
        recognised = recognise(start, self.root)
        if recognised is None or recognised[1] == "multigpu monitor":
            return None
        kind, what = recognised
        rank, size = (start.rank if kind == "rank" else None) or (None, None)
        process.cpu_percent()  # counts from now on
        return CourseProcess(
            process.pid,
            process.ppid(),
            kind,
            what,
            rank,
            size,
            process.create_time(),
            command=words_of(start),
        )


def fair_share(process: psutil.Process) -> int:
    """The bytes of a process; what it shares with n others counts 1/n (only Linux tells)."""
    try:
        return int(process.memory_full_info().pss)
    except (psutil.AccessDenied, AttributeError):
        return int(process.memory_info().rss)
