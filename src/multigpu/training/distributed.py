"""This process as a rank: how it was started, and the group that it joins and leaves.

launch = Launch.here()              # alone, or as a rank of torchrun or of a process group
backend = join_group(launch, None)  # NCCL if every rank has its own GPU, else gloo
lengths = all_gather_object(len(data))
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import re
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from multigpu.ranks.backend import Backend, rank_device
from multigpu.training.config import NeedsTorchrun

NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # torchrun sets all
POLL = 0.01  # seconds
PATIENCE = timedelta(minutes=30)  # to wait for the other ranks; PyTorch's own

GLOO_THREAD = "pt_gloo_runloop"
TASKS = Path("/proc/self/task")
PAUSE = 0.02  # seconds: a wait for the interpreter's lock wakes every 5 ms and counts as awake
GLOO_PATIENCE = 5.0  # seconds
ELSEWHERE = 0.2  # seconds, where there is no /proc


@dataclass(frozen=True)
class Launch:
    """How this process was started: alone, or as one of several ranks, and by whom."""

    rank: int = 0  # among all processes of all machines
    local_rank: int = 0  # among those of this machine
    world_size: int = 1  # processes in all
    local_world_size: int = 1  # processes on this machine
    started_by: str = "python"  # or "torchrun", or "a process group" that was there already

    @property
    def is_main(self) -> bool:
        """Rank 0 prints, shows the progress and writes files."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Started as a rank of a process group, though perhaps of one rank."""
        return self.started_by != "python"

    @property
    def device(self) -> torch.device:
        """The GPU of this rank, or the CPU. If there are fewer GPUs than ranks, ranks share them.

        A group that existed before may have no LOCAL_RANK; then all ranks count as on one machine.
        """
        return rank_device(self.local_rank)

    def require_ranks(self, mode: str, *, gpus: int | None) -> None:
        """Raise ValueError if this process is alone or is told a number of GPUs.

        For a `mode` that needs ranks.
        """
        if gpus is not None:
            raise NeedsTorchrun(
                f"gpus={gpus} with mode={mode!r}: each rank has one GPU in this mode. "
                "Leave gpus out and start",
                processes=gpus,
            )
        if not self.is_distributed:
            raise NeedsTorchrun(
                f"mode={mode!r} needs one process for each GPU. Start them with",
                processes=2,
                in_python=", or try it here with run_ranks(fn, 2)",
            )

    @classmethod
    def here(cls, environ: Mapping[str, str] = os.environ) -> Launch:
        """The launch according to this process's process group or environment.

        Raises ValueError when some of torchrun's variables are set and others are not.
        """
        if dist.is_available() and dist.is_initialized():
            rank, world_size = dist.get_rank(), dist.get_world_size()
            return cls(
                rank=rank,
                local_rank=int(environ.get("LOCAL_RANK", rank)),
                world_size=world_size,
                local_world_size=int(environ.get("LOCAL_WORLD_SIZE", world_size)),
                started_by="a process group",
            )
        given = [name for name in NEEDED if name in environ]
        if not given:
            return cls()
        if missing := [name for name in NEEDED if name not in environ]:
            raise NeedsTorchrun(
                f"{', '.join(given)} set, but not {', '.join(missing)}. Unset them to train in one "
                "process, or start with torchrun, which sets all:",
                processes="N",
            )
        return cls(
            rank=int(environ["RANK"]),
            local_rank=int(environ["LOCAL_RANK"]),
            world_size=int(environ["WORLD_SIZE"]),
            local_world_size=int(environ.get("LOCAL_WORLD_SIZE", environ["WORLD_SIZE"])),
            started_by="torchrun",
        )


def restarted() -> bool:
    """Whether torchrun has started this run's processes again after one of them failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


# What one rank does or knows for all of them, so that no rank waits for one that has failed.


def in_a_group() -> bool:
    """Whether there are other ranks to agree with."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def main_rank_does(work: Callable[[], None], *, error: type[Exception]) -> None:
    """Run `work` on rank 0 and return when it is done, on every rank.

    An exception of `work` is raised on rank 0; the other ranks then raise `error` with its message.
    """
    verdict: list[Any] = [None]
    cause: Exception | None = None
    if not in_a_group() or dist.get_rank() == 0:
        try:
            work()
        except Exception as problem:
            verdict, cause = [str(problem)], problem
    if in_a_group():
        dist.broadcast_object_list(verdict, src=0)
    if cause is not None:
        raise cause
    if verdict[0] is not None:
        raise error(verdict[0])


def all_gather_object(mine: Any) -> list[Any]:
    """The values of all ranks in rank order, on every rank."""
    if not in_a_group():
        return [mine]
    given: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(given, mine)
    return given


def from_main_rank(value: Any) -> Any:
    """Rank 0's `value`, on every rank."""
    if not in_a_group():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def take_from_main_rank(tensors: Iterable[Tensor], *, device: torch.device) -> None:
    """Put rank 0's numbers into `tensors` on every rank, as DistributedDataParallel does.

    The weights and buffers may be on any device; they are sent between the ranks' `device`.
    """
    with torch.no_grad():
        for tensor in tensors:
            if tensor.numel():
                sent = tensor.to(device).contiguous()  # the tensor itself, where it is so already
                dist.broadcast(sent, src=0)
                tensor.copy_(sent)


# The process group: join, agree on a backend, leave.


def join_group(launch: Launch, asked: str | None) -> Backend:
    """Join the process group, unless this process is in one; return its backend.

    Raises ValueError if the existing group has another backend, and on every rank if NCCL is asked
    for and not every rank has its own GPU.
    """
    ranks, device = launch.local_world_size, launch.device
    if device.type == "cuda":
        torch.cuda.set_device(device)  # NCCL and bare .cuda() use the current device
    if dist.is_initialized():
        # A group may have one for each type of device: "cpu:gloo,cuda:nccl", which is the default.
        backends = dict(each.split(":") for each in dist.get_backend_config().split(","))
        there = backends.get(device.type, dist.get_backend())
        if asked not in (None, there):
            raise ValueError(
                f"backend={asked!r}, but this process already has a process group of {there}. "
                "Leave backend out, or make the group with it."
            )
        atexit.unregister(let_gloo_finish)
        atexit.register(let_gloo_finish)  # the code that made that group leaves it
        return Backend(there, torch.cuda.device_count(), ranks)
    store, rank, world_size = next(iter(rendezvous("env://", timeout=PATIENCE)))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = PrefixStore(new_name(store, rank, world_size), store)
    gpu = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
    mine = socket.gethostname(), gpu
    backend = agree_on_backend(store, rank, world_size, asked=asked, mine=mine, ranks=ranks)
    dist.init_process_group(backend.name, store=store, rank=rank, world_size=world_size)
    atexit.register(leave_unless_failed)
    return backend


def new_name(store: Store, rank: int, world_size: int) -> str:
    """A name that rank 0 chooses and that only the ranks of this start get.

    torchrun keeps one store over all restarts (PyTorch issue 135712): a rank that is started again
    may read the address that another rank left there before, and wait for a process that is dead.

    Each rank sends a request with its own number; rank 0 answers every request until all ranks have
    confirmed the answer. Requests of dead ranks are answered, too, which does no harm. Restarts
    could be counted instead, but a machine that joins later counts from 0. Raises RuntimeError if
    ranks do not join.
    """
    if rank:
        question = uuid.uuid4().hex
        store.set(f"multigpu/question/{rank}", question)
        name: str = store.get(f"multigpu/answer/{question}").decode()
        store.set(f"multigpu/thanks/{name}/{rank}", "")
        return name
    name = uuid.uuid4().hex
    missing = set(range(1, world_size))
    until = time.monotonic() + PATIENCE.total_seconds()
    while missing:
        for other in sorted(missing):
            if store.check([f"multigpu/question/{other}"]):
                question = store.get(f"multigpu/question/{other}").decode()
                store.set(f"multigpu/answer/{question}", name)
            if store.check([f"multigpu/thanks/{name}/{other}"]):
                missing.discard(other)
        if time.monotonic() > until:
            raise RuntimeError(f"ranks {sorted(missing)} did not join within {PATIENCE}")
        time.sleep(POLL)
    return name


def agree_on_backend(
    store: Store,
    rank: int,
    world_size: int,
    *,
    asked: str | None,
    mine: tuple[str, str],
    ranks: int,
) -> Backend:
    """NCCL if each rank, on every machine, has a GPU that no other rank has; else gloo.

    `mine`: this machine, and which GPU of it this rank uses ("": none). Counting GPUs is not
    enough: a rank may see only one GPU and have it for itself (CUDA_VISIBLE_DEVICES, as Slurm sets
    it), and another machine may have none. Raises ValueError on every rank if `asked` is NCCL and
    not possible.
    """
    store.set(f"multigpu/gpu/{rank}", "\n".join(mine))
    told = store.multi_get([f"multigpu/gpu/{other}" for other in range(world_size)])
    of_ranks = [tuple(words.decode().split("\n")) for words in told]
    alone = all(gpu for _, gpu in of_ranks) and len(set(of_ranks)) == world_size
    here = {gpu for host, gpu in of_ranks if host == mine[0] and gpu}
    if asked == "nccl" and not alone:
        raise ValueError(
            f"backend='nccl': NCCL needs a GPU for each rank, but {ranks} ranks on {mine[0]} have "
            f"{len(here)}. Leave backend out to use gloo."
        )
    return Backend(asked or ("nccl" if alone else "gloo"), len(here), ranks)


def require_nccl_between_gpus(mode: str, backend: Backend, device: torch.device) -> None:
    """Raises ValueError where gloo would have to send what it can only send from the CPU.

    FSDP's reduce-scatter and a pipeline's send are not among what gloo can do on GPUs: see the
    table in https://docs.pytorch.org/docs/stable/distributed.html#backends.
    """
    if device.type == "cuda" and backend.name != "nccl":
        raise ValueError(
            f"mode={mode!r} on {backend}: this mode needs nccl between GPUs, and nccl needs one "
            "GPU per rank. Start fewer ranks, or compute on the CPU with CUDA_VISIBLE_DEVICES= "
            "before the command."
        )


def leave_group() -> None:
    """Shut down cleanly: NCCL warns at the end of a process that did not.

    The threads of gloo end with the last reference to the group. If another reference exists, wait
    for the threads: one that is busy when the interpreter ends may abort it.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()
        let_gloo_finish()


def leave_unless_failed() -> None:
    """At the end of the process: leave, but not after an uncaught error.

    Leaving NCCL waits for running operations, and the others may be waiting for this rank. It must
    end, so that torchrun notices and ends them.
    """
    if getattr(sys, "last_value", None) is None:
        leave_group()
    else:
        let_gloo_finish()  # which waits for no other rank


def let_gloo_finish() -> None:
    """Return when all threads of gloo are idle, or after GLOO_PATIENCE.

    A message that backward sends (DDP and FSDP do) carries a Python object, the context of that
    backward. The thread of gloo that has sent it releases it shortly after the message is done, and
    needs the interpreter's lock for that. When the interpreter is ending, Python ends a thread that
    asks for the lock; that unwinds it through a C++ destructor, and the process aborts: "terminate
    called without an active exception", exit code -6, after all results were complete.
    `destroy_process_group` does not help if anything still refers to the group, as the wrappers of
    DDP and FSDP do. See PyTorch's pull request 179291 and its issue 190489.

    A thread sleeps if it has not been switched to between two looks. Between them this thread
    sleeps, so that the others can get the lock.
    """
    if not TASKS.is_dir():
        time.sleep(ELSEWHERE)
        return
    until = time.monotonic() + GLOO_PATIENCE
    seen, busy = gloo_threads(), True
    while seen and busy and time.monotonic() < until:
        time.sleep(PAUSE)
        before, seen = seen, gloo_threads()
        busy = seen != before or not all(asleep for asleep, _ in seen.values())


def gloo_threads() -> dict[str, tuple[bool, int]]:
    """For each thread of gloo: whether it sleeps, and how often it was switched to."""
    found = {}
    for task in TASKS.iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if (task / "comm").read_text().strip() == GLOO_THREAD:
                status = (task / "status").read_text()
                switches = sum(map(int, re.findall(r"ctxt_switches:\s*(\d+)", status)))
                found[task.name] = "State:\tS" in status, switches
    return found
