"""Switches tracing on in a rank: every process group made from now on is a traced one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from multigpu.ranks.futures import record_futures
from multigpu.ranks.joins import record_joins
from multigpu.ranks.origin import origin
from multigpu.ranks.recorder import Current, Group, Recorder, Say
from multigpu.ranks.starts import record_starts
from multigpu.ranks.traced_group import TracedGroup

BACKEND = "traced"
DEVICES = {"gloo": "cpu", "nccl": "cuda"}


def start_recording(say: Say) -> Recorder:
    """Record this process's communication; ``say`` takes one frame at a time.

    Call it before ``init_process_group``.  That and ``new_group`` are called as always, with
    "gloo" or "nccl"; ``dist.get_backend()`` answers as always, too.
    """
    recorder = Current.recorder = Recorder(say)
    make_group = c10d._new_process_group_helper
    real: list[str] = []  # backends of the groups that are being made

    def make(options: Any, _: Any = None) -> dist.ProcessGroup:
        members = options.global_ranks_in_group or range(options.group_size)
        group = Group(str(options.group_id), tuple(int(rank) for rank in members))
        return TracedGroup(inner_group(real[-1], options), group, recorder)

    def make_traced(
        size: int, rank: int, members: list[int], backend: Any, store: Any, *args: Any, **named: Any
    ) -> Any:
        if str(backend) not in DEVICES:  # one that is not known here stays as it is
            return make_group(size, rank, members, backend, store, *args, **named)
        real.append(str(backend))
        try:
            group, prefix = make_group(
                size, rank, members, c10d.Backend(BACKEND), store, *args, **named
            )
        finally:
            name = real.pop()
        if isinstance(group, TracedGroup):
            c10d._world.pg_map[group] = (name, prefix)
            c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(c10d.Backend(name)))
        return group, prefix

    dist.Backend.register_backend(BACKEND, make, extended_api=True, devices=["cpu", "cuda"])
    c10d._new_process_group_helper = make_traced  # type: ignore[assignment]
    record_new_groups(recorder)
    record_joins(recorder)
    record_starts(recorder)
    record_futures(recorder)
    return recorder


def inner_group(backend: str, options: Any) -> dist.ProcessGroup:
    """A process group of torch's own that does the work."""
    store, rank, size = options.store, options.group_rank, options.group_size
    timeout: timedelta = options.timeout
    group = dist.ProcessGroup(store, rank, size)
    worker: Any
    if backend == "gloo":
        worker = dist.ProcessGroupGloo(store, rank, size, timeout)
    else:
        nccl = dist.ProcessGroupNCCL.Options()
        nccl._timeout = timeout
        worker = dist.ProcessGroupNCCL(store, rank, size, nccl)
    backend_type = getattr(dist.ProcessGroup.BackendType, backend.upper())
    group._set_default_backend(backend_type)
    for device in ("cpu", "cuda") if backend == "gloo" else ("cuda",):
        group._register_backend(torch.device(device), backend_type, worker)
    worker._set_sequence_number_for_group()
    return group


def record_new_groups(recorder: Recorder) -> None:
    """``new_group`` blocks until all ranks have called it: a collective of the whole world."""
    make = c10d._new_group_with_tag

    def make_recorded(*args: Any, **named: Any) -> Any:
        world = dist.group.WORLD
        if not isinstance(world, TracedGroup) or named.get("use_local_synchronization"):
            return make(*args, **named)
        ranks = args[0] if args else named.get("ranks")
        number = recorder.begin(
            "new_group",
            world.group,
            [],
            origin=origin(),
            is_async=False,
            wanted=world.group.members if ranks is None else sorted(ranks),
        )
        with recorder.waiting(number):
            group = make(*args, **named)
        recorder.done(number)
        return group

    c10d._new_group_with_tag = make_recorded
