"""What a program that was written for torchrun finds in a rank.

``init_process_group``, which meets the other ranks in a file instead of at a port and accepts the
group that ``run_ranks`` has made already; the program's ``__main__``.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

NCCL_TIMEOUT = timedelta(minutes=10)  # PyTorch's own; a build without NCCL does not know it
SLOWEST = timedelta(seconds=30)  # to join a group, when another rank leaves it already


class ProcessGroups:
    """``init_process_group`` and ``destroy_process_group`` in one rank.

    With ``init_method="env://"``, which is the default, the ranks meet in the file ``store``.
    """

    def __init__(self, store: str, *, virtual: bool, traced: bool) -> None:
        self._path, self._number = store, 0
        self._in_file = False  # the ranks of the present world have met in the file
        self._stores: dict[Any, Any] = {}  # of each group of this world that this rank has joined
        self._without_nccl = virtual and not traced  # the record is what speaks gloo for NCCL
        self._given = False  # run_ranks made the group, and the program has not asked for it yet
        self._shared = False  # it has
        self._init, self._destroy = c10d.init_process_group, c10d.destroy_process_group
        self._join = c10d._new_process_group_helper
        c10d._new_process_group_helper = self.join  # type: ignore[assignment]
        modules: tuple[Any, ...] = (dist, c10d)
        for module in modules:
            module.init_process_group, module.destroy_process_group = self.init, self.destroy
            if virtual:
                module.is_nccl_available = lambda: True
        modules[1].default_pg_nccl_timeout = modules[1].default_pg_nccl_timeout or NCCL_TIMEOUT

    def make(self, backend: str) -> None:
        """Join the group that a function in ``run_ranks`` begins with."""
        self.init(backend)
        self._given = True

    def init(
        self,
        backend: str | None = None,
        init_method: str | None = None,
        timeout: timedelta | None = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        *more: Any,
        **options: Any,
    ) -> None:
        own, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        backend = backend and str(backend).lower()  # torch takes "NCCL", too
        if self._given and ":" in (backend or "") and dist.get_backend() == "nccl":
            self.destroy()  # NCCL alone takes GPUs only, and the program wants the CPU as well
        if self._given:
            self._accept(backend, world_size, rank)
            return
        if store is None and init_method in (None, "env://") and not dist.is_initialized():
            for name, asked, right in (("world_size", world_size, size), ("rank", rank, own)):
                if asked not in (-1, right):
                    raise ValueError(
                        f"init_process_group({name}={asked}): this is rank {own} of {size}. Leave "
                        f"{name} out, or start as many ranks."
                    )
            self._number += 1  # a group that was destroyed has left its keys in its own file
            store = dist.FileStore(f"{self._path}.{self._number}", size)  # type: ignore[attr-defined]
            world_size, rank, init_method = size, own, None
            self._in_file = True
        elif not dist.is_initialized():
            self._in_file = False
        self._init(backend, init_method, timeout, world_size, rank, store, *more, **options)

    def join(
        self, size: int, rank: int, members: list[int], backend: Any, *more: Any, **options: Any
    ) -> Any:
        """What ``init_process_group`` and ``new_group`` come down to."""
        carrier = c10d.Backend("gloo") if self._without_nccl else backend
        group, store = self._join(size, rank, members, carrier, *more, **options)
        if store is not None:  # it is one of the members
            if self._without_nccl:
                set_backend_name(group, backend, store)
            if self._in_file:  # a server may have ended with its rank
                self._stores[group] = store
                store.set(f"joined {rank}", "")
        return group, store

    def _accept(self, backend: str | None, world_size: int, rank: int) -> None:
        """The program asks for the group that is there.  Raises ValueError for another one."""
        there = dist.get_backend(), dist.get_world_size(), dist.get_rank()
        names = ("backend", "world_size", "rank")
        for name, asked, right in zip(names, (backend, world_size, rank), there, strict=True):
            if asked not in (None, -1, right) and ":" not in str(asked):
                more = ', or gpus="virtual" for NCCL without GPUs' if asked == "nccl" else ""
                raise ValueError(
                    f"init_process_group({name}={asked!r}): run_ranks has made a group with "
                    f"{name}={right!r}. Leave {name} out, or pass it to run_ranks{more}."
                )
        self._given, self._shared = False, True

    def destroy(self, group: Any = None) -> None:
        """``torch.distributed.destroy_process_group``; what run_ranks has made stays."""
        if group is None or group is dist.group.WORLD:
            self._given, self._shared = self._shared, False
            if self._given:
                return
            ending = list(self._stores)
        else:
            ending = [group]
        for each in ending:
            # Gloo raises "Connection closed by peer" in a rank that is still connecting to this
            # one. With NCCL a rank may leave before another one joins at all; hence the limit.
            store = self._stores.pop(each, None)
            if store is not None:
                with contextlib.suppress(RuntimeError):
                    store.wait([f"joined {rank}" for rank in range(each.size())], SLOWEST)
        self._destroy(group)


def set_backend_name(group: Any, backend: Any, store: Any) -> None:
    """From now on ``dist.get_backend(group)`` is ``backend``, whatever does the work."""
    c10d._world.pg_map[group] = (backend, store)
    c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(c10d.Backend(backend)))


def install_main(function: Callable[..., Any]) -> None:
    """Classes of the caller's ``__main__`` can be pickled inside this rank.

    Functions of a notebook cell or a script arrive with the names that they use; pickle looks for
    their classes in the module of that name.
    """
    main = types.ModuleType("__main__")
    code: Mapping[str, Any] = getattr(function, "__globals__", {})
    if code.get("__name__") == "__main__":
        main.__dict__.update(code)
        sys.modules["__main__"] = main


def run_program(program: str, arguments: Sequence[str], *, is_module: bool = False) -> int:
    """Run a script, or a module, as ``python`` does, and return its exit code.

    Raises what the program raises.
    """
    sys.argv = [program, *arguments]
    try:
        if is_module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            path = os.path.abspath(program)  # of which Python makes __file__, too
            sys.path.insert(0, os.path.dirname(path))
            runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        return exit_code(end)
    return 0


def result_of(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """What a function returns; None if it ends with ``sys.exit(0)``."""
    try:
        return function(*arguments)
    except SystemExit as end:
        if exit_code(end):
            raise
        return None


def exit_code(end: SystemExit) -> int:
    """The exit code of a program that ends like this.  A text is written out, and counts as 1."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1
