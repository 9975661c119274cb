"""What one rank of ``run_ranks`` does: join the others, run the function, hand back its result."""

import contextlib
import importlib
import io
import linecache
import os
import random
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from multigpu.ranks.backend import join_group
from multigpu.ranks.errors import describe_exception, traceback_text
from multigpu.ranks.frames import Write
from multigpu.ranks.recorder import inside
from multigpu.ranks.warming import costly_imports

SPARE = 2**10  # bytes that a result may have too many: cheaper than a copy
OURS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """What a caller asks for, as plain data; function and arguments travel beside it."""

    world_size: int
    timeout: float | None  # seconds without progress
    backend: str | None
    memory: int | None  # bytes per rank
    threads: int  # of each rank, inside an operator
    trace: bool
    folder: str  # where the caller is
    path: list[str]  # where the caller finds modules
    environment: dict[str, str]
    cells: dict[str, list[Any]]  # source of code that is in no file, for tracebacks


@dataclass(frozen=True)
class Rank:
    """One rank: call it with its number and a function that takes its frames."""

    job: Job
    backend: str
    store: str  # the file in which the ranks find each other
    payload: bytes  # function and arguments

    def __call__(self, rank: int, write: Write) -> None:
        """Run the job; whatever goes wrong in it is said."""
        import cloudpickle  # type: ignore[import-untyped]

        job = self.job
        try:
            settle(job)
            join_group(
                rank,
                job.world_size,
                store=self.store,
                backend=self.backend,
                trace=job.trace,
                write=write,
            )
            with self._limited_memory(rank, write):
                function, arguments = cloudpickle.loads(self.payload)
                result = function(*arguments)
            answer = to_bytes(result)
        except BaseException as error:  # sys.exit and KeyboardInterrupt too
            said = {**describe_exception(error), "traceback": traceback_text(error)}
            print(end="", flush=True)  # the run may be ended as soon as this is known
            write({"phase": "raised", **said, "inside": inside(error), "time": time.monotonic()})
            return
        write({"phase": "answer"}, answer)
        write({"phase": "returned", "time": time.monotonic(), "costly": costly_imports()})

    @contextlib.contextmanager
    def _limited_memory(self, rank: int, write: Write) -> Iterator[None]:
        if self.job.memory is None:
            yield
            return
        from multigpu.ranks.memory import limited_memory

        with limited_memory(self.job.memory, rank=rank) as peak:
            try:
                yield
            finally:
                write({"phase": "memory", "peak": peak()})


def settle(job: Job) -> None:
    """Make this process what the caller's own child would be."""
    import torch

    kept = {name: value for name, value in os.environ.items() if name.startswith("MULTIGPU_")}
    os.environ.clear()
    os.environ.update(job.environment | kept | dict.fromkeys(OURS, str(job.threads)))
    os.chdir(job.folder)
    sys.path[:] = job.path
    linecache.cache.update({name: tuple(entry) for name, entry in job.cells.items()})
    torch.set_num_threads(job.threads)
    random.seed()  # the ranks were copied from one process; torchrun's have other numbers each
    torch.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def to_bytes(result: Any) -> bytes:
    """A result for the way to the caller; tensors arrive on the CPU.

    Raises TypeError for what cannot travel.
    """
    return pickled(result, what="this rank's result", hint="Return tensors, numbers or lists.")


def pickled(value: Any, *, what: str, hint: str) -> bytes:
    """``value`` as bytes, code of notebook cells included.  Raises TypeError."""
    import cloudpickle

    torch = sys.modules.get("torch")  # where it is not imported there are no tensors
    protocol = cloudpickle.DEFAULT_PROTOCOL

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if torch and isinstance(obj, torch.Tensor) and (obj.is_cuda or _is_small_view(obj)):
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
        raise TypeError(text) from None  # where in pickle it failed tells a reader nothing
    return file.getvalue()


def _is_small_view(tensor: Any) -> bool:
    """Whether pickle, which writes a tensor's whole storage, would send much more than the tensor.

    Nothing is lost by sending the tensor alone: pickle writes a storage once per tensor, so that
    tensors that shared one do not share it afterwards.
    """
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return False
    return bool(tensor.is_cpu and tensor.untyped_storage().nbytes() > 2 * tensor.nbytes + SPARE)
