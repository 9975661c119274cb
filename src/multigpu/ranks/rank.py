"""A rank of ``run_ranks``: join the others, run the function, return its result."""

import importlib
import io
import linecache
import os
import random
import sys
import time
import types
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

from multigpu.ranks.backend import become_rank, choose_backend, free_port
from multigpu.ranks.errors import describe_exception, traceback_text
from multigpu.ranks.frames import Write
from multigpu.ranks.proof import Watch
from multigpu.ranks.recorder import inside
from multigpu.ranks.resource_monitor import UNLIMITED
from multigpu.ranks.warming import costly_imports

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """The caller's request, as plain data."""

    payload: bytes  # function and arguments
    world_size: int
    timeout: float | None  # seconds without progress
    backend: str | None
    memory: int | None  # bytes per rank
    gpus: str | None  # "virtual", or those of this machine
    joins: bool  # torch.distributed is ready; a program for torchrun does that itself
    threads: int  # of each rank, inside an operator
    trace: bool
    folder: str  # where the caller is
    path: list[str]  # where the caller finds modules
    environment: dict[str, str]
    cells: dict[str, Any]  # source of code that is in no file, for tracebacks


def warm_up() -> None:
    """Import in the server what ranks need, so that no rank has to."""
    import cloudpickle  # type: ignore[import-untyped]  # noqa: F401
    import torch.nn.parallel  # noqa: F401

    import multigpu.ranks.supervisor
    import multigpu.ranks.traced_group  # noqa: F401


def serve(job: Job, caller: Connection, folder: str) -> None:
    """Run the job's ranks, in the server, and report."""
    # Windows has not what it imports, and this module is imported before that is refused.
    from multigpu.ranks.supervisor import Supervisor

    try:
        backend = choose_backend(
            job.world_size,
            asked=job.backend,
            gpus=count_gpus(job.environment.get("CUDA_VISIBLE_DEVICES")),
            virtual=job.gpus == "virtual",
        )
    except ValueError as error:
        return caller.send(("refused", str(error)))
    caller.send(("begins", str(backend)))
    run = Supervisor(
        job.world_size,
        Rank(job, backend.name, os.path.join(folder, "store"), free_port()),
        limits=UNLIMITED,
        caller=caller,
        watch=Watch(job.world_size, timeout=job.timeout),
        tell=True,
    )
    caller.send(("report", run.run()))


@cache
def count_gpus(visible: str | None) -> int:
    """How many GPUs a rank sees with this CUDA_VISIBLE_DEVICES.

    Asked in a process of its own: counting leaves NVML's connection to the driver open, which does
    not survive a fork. In a rank NVML would fail then, and NCCL and PyTorch's allocator with it.
    """
    import torch

    if not (torch.version.cuda or torch.version.hip):
        return 0
    pid = os.fork()
    if pid == 0:
        gpus = 0
        try:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            if visible is not None:
                os.environ["CUDA_VISIBLE_DEVICES"] = visible
            gpus = torch.cuda.device_count()
        finally:
            os._exit(gpus)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@dataclass(frozen=True)
class Rank:
    """The body of one rank: runs in the child process and reports with the given function."""

    job: Job
    backend: str
    store: str  # the file in which the ranks find each other
    port: int  # for what meets at a port all the same, as remote calls do

    def __call__(self, rank: int, write: Write) -> None:
        """Run the job and report every error in it."""
        import cloudpickle
        import torch

        from multigpu.devices.machine import virtual_gpus
        from multigpu.ranks.memory_limit import memory_within
        from multigpu.ranks.torchrun import ProcessGroups, install_main, result_of

        job = self.job
        try:
            settle(job)
            virtual = job.gpus == "virtual"
            if virtual:
                # For good: the process ends with its GPUs.
                virtual_gpus(job.world_size, memory=job.memory or "16 GiB").__enter__()
            become_rank(
                rank,
                job.world_size,
                trace=job.trace,
                write=write,
                takes_gpu=job.joins,
                port=self.port,
            )
            groups = ProcessGroups(self.store, virtual=virtual, traced=job.trace)
            if job.joins:
                groups.make(self.backend)
                write({"phase": "joined_group"})  # which takes a while with many ranks: progress
            with memory_within(None if virtual else job.memory, rank, write):
                function, arguments = cloudpickle.loads(job.payload)
                install_main(function)
                result = result_of(function, arguments)
            if virtual:
                write({"phase": "memory", "peak": torch.cuda.max_memory_allocated(rank)})
            hint = "Return tensors, numbers or lists."
            answer = pickled(result, what="this rank's result", hint=hint)
        except BaseException as error:  # sys.exit and KeyboardInterrupt too
            said = {**describe_exception(error), "traceback": traceback_text(error)}
            print(end="", flush=True)  # the run may be ended as soon as this is known
            write({"phase": "raised", **said, "inside": inside(error), "time": time.monotonic()})
            return
        write({"phase": "answer"}, answer)
        write({"phase": "returned", "time": time.monotonic(), "costly": costly_imports()})


def settle(job: Job) -> None:
    """Give this process the state that the caller's own child would have."""
    import torch

    kept = {name: value for name, value in os.environ.items() if name.startswith("MULTIGPU_")}
    os.environ.clear()
    os.environ.update(job.environment | kept | dict.fromkeys(THREAD_VARIABLES, str(job.threads)))
    os.chdir(job.folder)
    sys.path[:] = job.path
    linecache.cache.update(job.cells)
    torch.set_num_threads(job.threads)
    random.seed()  # the ranks were copied from one process; torchrun's have other numbers each
    torch.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def pickled(value: Any, *, what: str, hint: str) -> bytes:
    """``value`` as bytes, including code of notebook cells; tensors arrive on the CPU.

    Raises TypeError for objects that cannot be sent.
    """
    import cloudpickle

    torch: Any = sys.modules.get("torch")  # where it is not imported there are no tensors
    protocol = cloudpickle.DEFAULT_PROTOCOL

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            # A copy on the CPU: pickle writes a tensor's whole storage, once for each tensor, and
            # of a large one the tensor may show a small part.
            plain = torch and type(obj) in (torch.Tensor, torch.nn.Parameter) and not vars(obj)
            if torch and isinstance(obj, torch.Tensor) and (obj.is_cuda or (obj.is_cpu and plain)):
                data = obj.detach().to("cpu", copy=True)
                if isinstance(obj, torch.nn.Parameter):
                    data = torch.nn.Parameter(data, requires_grad=obj.requires_grad)
                return data.requires_grad_(obj.requires_grad).__reduce_ex__(protocol)
            # A function that uses `dist` and something called `config` takes along
            # torch.distributed.config, a module of a class that cloudpickle cannot send.
            if isinstance(obj, types.ModuleType) and sys.modules.get(obj.__name__) is obj:
                return importlib.import_module, (obj.__name__,)
            return super().reducer_override(obj)

    file = io.BytesIO()
    try:
        Pickler(file).dump(value)
    except Exception as error:
        text = f"{what} cannot be sent between processes: {error}. {hint}"
        raise TypeError(text) from None  # the place inside pickle does not help
    return file.getvalue()
