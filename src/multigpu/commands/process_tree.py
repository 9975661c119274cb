"""Who started whom among the course's processes: servers, those who watch, ranks, their workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from multigpu.commands.seen_process import RANKS_SERVER, CourseProcess

WATCHER = "watcher of run_ranks"


def numbered(found: Mapping[int, CourseProcess]) -> list[CourseProcess]:
    """Servers' forks by what they are: who watches over a run, its ranks, what those started."""
    forks = {pid: each for pid, each in found.items() if is_fork(each, found)}
    named = {pid: each for pid, each in found.items() if pid not in forks}
    groups: dict[int, list[CourseProcess]] = {}
    for each in sorted(forks.values(), key=lambda each: (each.started, each.pid)):
        groups.setdefault(each.parent, []).append(each)
    todo = [pid for pid in groups if pid in named]
    while todo:
        parent = todo.pop()
        for number, each in enumerate(groups[parent]):
            named[each.pid] = as_fork(each, number, len(groups[parent]), named[parent])
            todo += [each.pid] if each.pid in groups else []
    named |= {pid: each for pid, each in forks.items() if pid not in named}
    return [worker_or_rank(each, named) for each in named.values()]


def is_fork(each: CourseProcess, found: Mapping[int, CourseProcess]) -> bool:
    """Whether its parent is a server with the same command line, or a fork of one."""
    parent = found.get(each.parent)
    return each.kind == "server" and parent is not None and parent.command == each.command


def as_fork(each: CourseProcess, number: int, count: int, parent: CourseProcess) -> CourseProcess:
    """A server's fork, or a fork of that one, as what it is."""
    runs = RANKS_SERVER in each.command
    if parent.kind == "server" and runs and parent.what != WATCHER:
        return replace(each, what=WATCHER)
    if parent.kind == "server":
        what = "run_ranks" if runs else "check"
        rank, size = (number, count) if runs or count > 1 else (None, None)
        return replace(each, kind="rank", what=what, rank=rank, world_size=size)
    return replace(each, kind="child", what="forked by it")


def worker_or_rank(each: CourseProcess, found: Mapping[int, CourseProcess]) -> CourseProcess:
    """A process that was forked keeps the words of the one above it, and only works for that."""
    parent = found.get(each.parent)
    if each.kind == "server" or parent is None or each.command != parent.command:
        return each
    if parent.kind in ("rank", "command", "script", "notebook"):
        return replace(each, kind="child", what="forked by it", rank=None, world_size=None)
    return each


def in_order(found: Sequence[CourseProcess]) -> list[CourseProcess]:
    """Each process after the one that started it; ranks by their number, else the oldest first."""
    pids = {each.pid for each in found}

    def below(parent: int | None) -> Iterator[CourseProcess]:
        here = [each for each in found if (each.parent if each.parent in pids else None) == parent]
        for each in sorted(here, key=by_rank_and_age):
            yield each
            yield from below(each.pid)

    return list(below(None))


def by_rank_and_age(each: CourseProcess) -> tuple[int, float, int]:
    """Ranks by their number, all else the oldest first."""
    return each.rank or 0, each.started, each.pid
