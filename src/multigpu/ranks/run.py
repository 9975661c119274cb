"""``run_ranks``: one call that starts N cooperating processes.

    def hello():
        return dist.get_rank() * 10

    run_ranks(hello, 4)     # [0, 10, 20, 30]

Next: server.py (starts the processes), supervisor.py (watches them), rank.py (runs in each of
them), proof.py (finds what went wrong).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import linecache
import os
import pickle
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

from multigpu.devices.meters import parse_bytes
from multigpu.ranks.backend import NAMES
from multigpu.ranks.errors import RankError, counted, stack_text
from multigpu.ranks.process_tree import MARK, RUN, warn_of
from multigpu.ranks.rank import Job, pickled
from multigpu.ranks.server import RANKS, ServerDied
from multigpu.ranks.trace import Trace
from multigpu.ranks.warming import NAMED, OPTIMIZING, costly_imports


def run_ranks(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout: float | None = 60.0,
    backend: str | None = None,
    memory: int | str | None = None,
    gpus: str | None = None,
    threads: int = 1,
    trace: bool = True,
    show: bool = True,
) -> Results:
    """Run ``fn(*args)`` on ``world_size`` ranks, with torch.distributed ready in each of them.

    Each rank is a separate process.  ``fn`` may be defined in a notebook cell; it and ``args`` are
    copied to every rank.  What it returns comes back in rank order, tensors on the CPU.

    * ``timeout``: seconds without progress (no call of torch.distributed begins or ends, nothing
      is printed, and no part of a result arrives) after which the run is stopped; None: never.
      It counts after ``fn`` has returned, too, as long as its threads or processes run.  A
      deadlock is found much earlier, unless a call in it has a time limit that ends before.
    * ``backend``: "gloo" or "nccl"; NCCL is chosen where every rank has a GPU of its own.
    * ``memory``: a limit for each rank's tensors, "1 GiB" for example.
    * ``gpus="virtual"``: rank i gets the virtual GPU ``cuda:i``, and "nccl" works without NCCL:
      what is on those GPUs goes through gloo, and what is on the CPU fails as it does with NCCL
      (unless ``trace=False``).
    * ``threads``: how many threads an operator may use in each rank.
    * ``trace=False``: PyTorch's own process group without a record of its calls, for
      measurements; deadlocks then count as no progress.
    * ``show``: print each rank's output as it comes, and a line that names the backend.

    Raises RankError when a rank fails or all are stuck, and ValueError for wrong arguments.
    """
    if sys.platform == "win32":
        raise RuntimeError(
            "run_ranks needs Linux or macOS. On Windows work in WSL2: https://aka.ms/wsl"
        )
    if not callable(fn):
        raise ValueError(
            f"fn={fn!r}: give the function itself, without calling it: run_ranks(train, 4)"
        )
    for name, count in {"world_size": world_size, "threads": threads}.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{name}={count!r}: give a whole number from 1, like {name}=4")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout={timeout!r}: give seconds, more than 0, or None for no limit")
    if backend not in (None, *NAMES):
        raise ValueError(f'backend={backend!r}: choose "gloo" or "nccl", or leave it out')
    if gpus not in (None, "virtual"):
        raise ValueError(f'gpus={gpus!r}: choose "virtual", or leave it out for real GPUs')
    job = make_job(
        pickled_call(fn, args),
        world_size,
        timeout=timeout,
        backend=backend,
        memory=None if memory is None else parse_bytes(memory),
        gpus=gpus,
        threads=threads,
        trace=bool(trace),
    )
    return run_job(job, Printer(world_size, show=show))


def make_job(payload: bytes, world_size: int, *, joins: bool = True, **asked: Any) -> Job:
    """A request for ranks that have the state of this process.  Raises ValueError.

    ``joins=False``: the program calls ``init_process_group`` itself.
    """
    depth = os.environ.get(MARK, "").count(RUN)
    if depth >= DEEPEST:
        raise ValueError(
            f"this run_ranks is nested inside {depth} others. Each rank imports the module, and a "
            "run_ranks outside of every function then runs again in each of them. Put the call "
            'under `if __name__ == "__main__":`'
        )
    folder = os.getcwd()
    return Job(
        payload=payload,
        world_size=world_size,
        joins=joins,
        folder=folder,
        path=[os.path.abspath(folder) for folder in sys.path],
        environment=dict(os.environ),
        cells={  # linecache has the source of notebook cells, which are in no file
            name: entry
            for name, entry in list(linecache.cache.items())
            if len(entry) == 4 and entry[1] is None
        },
        **asked,
    )


def run_job(job: Job, printer: Printer) -> Results:
    """Run the ranks of a request.  Raises RankError, and ValueError for what no rank can do."""
    backend: str | None = job.backend
    # One import in the server is quicker than one in each rank, and fn's names tell that it trains.
    wanted = costly_imports(NAMED)
    if b"optim" in job.payload or "multigpu.training.trainer" in sys.modules:
        wanted.append(OPTIMIZING)
    try:
        with RANKS.run(job, wanted=wanted) as receive:
            while True:
                match receive():
                    case "refused", text:
                        raise ValueError(text)
                    case "begins", name:
                        backend = name
                        printer.begin(name)
                    case "output", rank, part:
                        printer.add(rank, part)
                    case "report", report:
                        printer.end()
                        return read_report(report, job, str(backend))
    except ServerDied as death:
        printer.end()
        text = f"the supervisor process was killed, and the ranks with it. {death}"
        raise RankError("exit", range(job.world_size), text.strip()) from None


DEEPEST = 3  # runs inside each other


def read_report(report: dict[str, Any], job: Job, backend: str) -> Results:
    """The results of a run that went well.  Raises RankError."""
    warn_of(report["unended"])
    members, finding = report["members"], report["finding"]
    outputs = [member["output"] for member in members]
    if finding:
        if finding.kind == "no_progress":
            stacks = {rank: stack_text(members[rank]["stack"]) for rank in finding.ranks}
            finding = finding.with_stacks(stacks)
        raise RankError(
            finding.kind,
            finding.ranks,
            finding.text(),
            trace=report["trace"],
            outputs=outputs,
            finding=finding,
        )
    peaks = []
    for rank, member in enumerate(members):
        for header in member["said"]:
            match header["phase"]:
                case "fault":
                    raise RuntimeError(
                        f"rank {rank} failed in the course's own code: {header['traceback']}"
                    )
                case "returned":
                    RANKS.learn(header["costly"])
                case "memory":
                    peaks.append(header["peak"])
    return Results(
        [pickle.loads(member["answer"]) for member in members],
        trace=report["trace"],
        outputs=outputs,
        backend=backend,
        memory=peaks or None,
        seconds=report["seconds"],
    )


BY_VALUE = threading.Lock()  # cloudpickle's list of such modules belongs to the whole process


def pickled_call(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Function and arguments as bytes. Raises ValueError for objects that cannot be sent.

    Modules that other processes would not find are copied, as the code of a notebook is.
    """
    import cloudpickle  # type: ignore[import-untyped]

    with BY_VALUE, contextlib.ExitStack() as stack:
        for module in modules_of_the_caller():
            if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        try:
            return pickled(
                (fn, args),
                what=f"fn={getattr(fn, '__qualname__', fn)!r} or one of its arguments",
                hint="Create such objects (locks, open files, generators) inside the function.",
            )
        except TypeError as error:
            raise ValueError(str(error)) from None


def modules_of_the_caller() -> list[types.ModuleType]:
    """Modules that no rank would find: neither installed nor in Python's search path."""
    installed = tuple(
        os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")
    )
    found = []
    for name, module in list(sys.modules.items()):
        file = vars(module).get("__file__") if isinstance(module, types.ModuleType) else None
        top = name.partition(".")[0]
        if not isinstance(file, str) or top in ("__main__", "multigpu"):
            continue
        if not file.startswith((*installed, *places_of(top, tuple(sys.path)))):
            found.append(module)
    return found


@functools.cache
def places_of(package: str, path: tuple[str, ...]) -> tuple[str, ...]:
    """Where Python would find a module, or all of a package: a file, or folders."""
    spec = importlib.machinery.PathFinder.find_spec(package, path)
    folders = spec and spec.submodule_search_locations
    if folders:
        return tuple(os.path.join(folder, "") for folder in folders)
    return (spec.origin,) if spec and spec.origin else ()


class Results(list[Any]):
    """One result per rank, in rank order: a list.

    ``trace``: every collective and message of every rank.  ``outputs``: what each rank printed.
    ``backend``: "gloo on the CPU", for example.  ``memory``: each rank's peak in bytes, None if no
    limit was asked for.  ``seconds``: how long it took.
    """

    def __init__(
        self,
        values: Sequence[Any],
        *,
        trace: Trace,
        outputs: Sequence[str],
        backend: str,
        memory: Sequence[int] | None,
        seconds: float,
    ) -> None:
        super().__init__(values)
        self.trace = trace
        self.outputs, self.backend, self.seconds = list(outputs), backend, seconds
        self.memory = None if memory is None else list(memory)


class Printer:
    """Takes output in parts and prints it in lines: "rank 1 | epoch 3"."""

    def __init__(self, world_size: int, *, show: bool) -> None:
        self._show = show
        self._rests = [b""] * world_size  # of lines that are not finished yet

    def begin(self, backend: str) -> None:
        self._print(f"{counted(len(self._rests), 'rank')}: {backend}\n")

    def add(self, rank: int, part: bytes) -> None:
        *lines, self._rests[rank] = (self._rests[rank] + part).split(b"\n")
        text = "".join(f"rank {rank} | {line.decode(errors='replace')}\n" for line in lines)
        self._print(text)

    def end(self) -> None:
        for rank, rest in enumerate(self._rests):
            if rest:
                self.add(rank, b"\n")

    def _print(self, text: str) -> None:
        if self._show and text:
            sys.stdout.write(text)
            sys.stdout.flush()
