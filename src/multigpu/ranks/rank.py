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
from typing import TYPE_CHECKING, Any

from multigpu.ranks.errors import describe_exception, traceback_text
from multigpu.ranks.frames import Write
from multigpu.ranks.warming import costly_imports

if TYPE_CHECKING:
    import torch


NAMES = ("gloo", "nccl")
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True)
class Backend:
    """The backend of a run, and how many GPUs its ranks have."""

    name: str
    gpus: int
    world_size: int

    def __str__(self) -> str:
        if not self.gpus:
            return f"{self.name} on the CPU"
        if self.gpus >= self.world_size:
            return f"{self.name} on {_count(self.world_size, 'GPU')}"
        return f"{self.name}, {self.world_size} ranks share {_count(self.gpus, 'GPU')}"


def choose_backend(world_size: int, *, asked: str | None, gpus: int) -> Backend:
    """NCCL where every rank has a GPU of its own, else gloo.  Raises ValueError."""
    if asked == "nccl" and gpus < world_size:
        raise ValueError(
            f'backend="nccl": NCCL needs a GPU for each of the {world_size} ranks; this machine '
            f"has {gpus}. Leave `backend` out, and gloo is used."
        )
    return Backend(asked or ("nccl" if gpus >= world_size else "gloo"), gpus, world_size)


def rank_device(local_rank: int | None = None) -> "torch.device":
    """The device of this rank: ``cuda:i`` where there are GPUs, else the CPU.

    Where there are fewer GPUs than ranks on this machine, the ranks share them.  It works under
    torchrun, too: without ``local_rank``, the variable LOCAL_RANK counts.
    """
    import torch

    gpus = torch.cuda.device_count()
    if not gpus:
        return torch.device("cpu")
    if local_rank is None:
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", local_rank % gpus)


def join_group(
    rank: int, world_size: int, *, store: str, backend: str, trace: bool, write: Write
) -> None:
    """Meet the other ranks in the file ``store``; torch.distributed is ready afterwards.

    No address and no port has to be agreed upon: any number of runs go side by side.
    """
    import torch
    from torch._C._distributed_c10d import FileStore
    from torch.distributed import init_process_group

    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        "NCCL_SOCKET_IFNAME": LOOPBACK,
    }
    device = rank_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if trace:
        from multigpu.ranks.tracing import start_recording

        start_recording(write)
    init_process_group(
        backend, store=FileStore(store, world_size), rank=rank, world_size=world_size
    )
    write({"phase": "joined_group", "time": time.monotonic()})


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


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
    cells: dict[str, list[Any]]  # source of code that stands in no file, for tracebacks

    def header(self) -> dict[str, Any]:
        """For the wire."""
        return dict(vars(self))


@dataclass(frozen=True)
class Rank:
    """One rank: call it with its number and its mouth."""

    job: Job
    backend: str
    store: str  # the file in which the ranks find each other
    payload: bytes  # function and arguments

    def __call__(self, rank: int, write: Write) -> None:
        """Run the job; whatever goes wrong in it is said."""
        import cloudpickle  # type: ignore[import-untyped]

        listening = Listening(write)
        try:
            settle(self.job)
            join_group(
                rank,
                self.job.world_size,
                store=self.store,
                backend=self.backend,
                trace=self.job.trace,
                write=listening,
            )
            with self._limited_memory(rank, write):
                function, arguments = cloudpickle.loads(self.payload)
                result = function(*arguments)
            answer = to_bytes(result)
        except BaseException as error:  # sys.exit and KeyboardInterrupt too
            said = {**describe_exception(error), "traceback": traceback_text(error)}
            print(end="", flush=True)  # the run may be ended as soon as this is known
            write({"phase": "raised", **said, "inside": listening.inside(error), **now()})
            return
        write({"phase": "answer"}, answer)
        write({"phase": "returned", **now(), "costly": costly_imports()})

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


class Listening:
    """A mouth that remembers which call failed last."""

    def __init__(self, write: Write) -> None:
        self._write, self._failed = write, {"id": None, "text": None}

    def __call__(self, header: dict[str, Any], blob: bytes = b"") -> None:
        """Say it."""
        if header["phase"] == "failed":
            self._failed = header
        self._write(header, blob)

    def inside(self, error: BaseException) -> int | None:
        """The number of the call that raised ``error``, if one did."""
        text = self._failed["text"]
        return self._failed["id"] if text is not None and str(error).startswith(text) else None


def now() -> dict[str, float]:
    """The time, for a frame."""
    return {"time": time.monotonic()}


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

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if torch and isinstance(obj, torch.Tensor) and (obj.is_cuda or is_small_view(obj)):
                return on_the_cpu(obj).__reduce_ex__(pickle_protocol)
            if is_special_module(obj):
                return importlib.import_module, (obj.__name__,)
            return super().reducer_override(obj)

    pickle_protocol = cloudpickle.DEFAULT_PROTOCOL
    file = io.BytesIO()
    try:
        Pickler(file).dump(value)
    except Exception as error:
        text = f"{what} cannot be sent between processes: {error}. {hint}"
        raise TypeError(text) from None  # where in pickle it failed tells a reader nothing
    return file.getvalue()


def is_special_module(value: Any) -> bool:
    """Whether it is a module of another class than Python's, which cloudpickle cannot send.

    A function that uses `dist` and something called `config` gets torch.distributed.config with it.
    """
    special = isinstance(value, types.ModuleType) and type(value) is not types.ModuleType
    return special and sys.modules.get(value.__name__) is value


def is_small_view(tensor: Any) -> bool:
    """Whether pickle, which writes a tensor's whole storage, would send much more than the tensor.

    Nothing is lost by sending the tensor alone: pickle writes a storage once per tensor, so that
    tensors that shared one do not share it afterwards.
    """
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return False
    return bool(tensor.is_cpu and tensor.untyped_storage().nbytes() > 2 * tensor.nbytes + SPARE)


def on_the_cpu(tensor: Any) -> Any:
    """A copy of a tensor or parameter in the machine's own memory, with a storage of its own."""
    import torch

    data = tensor.detach().to("cpu", copy=True)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(data, requires_grad=tensor.requires_grad)
    return data.requires_grad_(tensor.requires_grad)
