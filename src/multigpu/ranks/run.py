"""``run_ranks``: N processes that work together, from one call.

    def hello():
        return dist.get_rank() * 10

    run_ranks(hello, 4)     # [0, 10, 20, 30]

Next: forkserver.py (where the processes come from), supervisor.py (who watches them), rank.py (what
each of them does), proof.py (what can go wrong with them).
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import importlib.machinery
import inspect
import linecache
import os
import pickle
import socket
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, overload

from multigpu.devices.meters import parse_bytes
from multigpu.ranks.backend import NAMES
from multigpu.ranks.errors import Finding, RankError, counted, stack_text
from multigpu.ranks.frames import Closed, from_a_handler, receive, send
from multigpu.ranks.process_tree import MARK, warn_of
from multigpu.ranks.rank import Job, pickled
from multigpu.ranks.server import ForkServer, Server
from multigpu.ranks.trace import Trace
from multigpu.ranks.warming import OPTIMIZING

GOODBYE = 20.0  # seconds for a supervisor to end its ranks: more than process_tree.ENDING


def run_ranks(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout: float | None = 60.0,
    backend: str | None = None,
    memory: int | str | None = None,
    threads: int = 1,
    trace: bool = True,
    show: bool = True,
) -> Results:
    """Run ``fn(*args)`` on ``world_size`` ranks, with torch.distributed ready in each of them.

    A rank is a process of its own.  ``fn`` may be defined in a notebook cell; it and ``args`` are
    copied to every rank.  What it returns comes back in rank order, tensors on the CPU.

    * ``timeout``: seconds without progress (no call of torch.distributed begins or ends, nothing
      is printed, and no part of a result arrives) after which the run is given up; None: never.
      It counts after ``fn`` has returned, too, as long as its threads or processes go on.  A
      deadlock is found much earlier.
    * ``backend``: "gloo" or "nccl"; NCCL is chosen where every rank has a GPU of its own.
    * ``memory``: a limit for each rank's tensors, "1 GiB" for example.
    * ``threads``: how many threads an operator may use in each rank.
    * ``trace=False``: PyTorch's own process group without a record of its calls, for
      measurements; deadlocks then count as no progress.
    * ``show``: print each rank's output as it comes, and a line that names the backend.

    Raises RankError when a rank fails or all are stuck, and ValueError for wrong arguments.
    """
    _refuse_platform_and_function(fn)
    for name, count in {"world_size": world_size, "threads": threads}.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{name}={count!r}: give a whole number from 1, like {name}=4")
    seconds = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (seconds and timeout > 0):
        raise ValueError(f"timeout={timeout!r}: give seconds, more than 0, or None for no limit")
    if backend is not None and backend not in NAMES:
        raise ValueError(f'backend={backend!r}: "gloo" and "nccl" are possible, or leave it out')
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        raise ValueError(
            "the working folder of this program was deleted, and the ranks cannot start there. "
            'Go to a folder that exists first: os.chdir("..."), or cd in the shell'
        ) from None
    job = Job(
        world_size=world_size,
        timeout=timeout,
        backend=backend,
        memory=None if memory is None else parse_bytes(memory),
        threads=threads,
        trace=bool(trace),
        folder=folder,
        path=[os.path.abspath(folder) for folder in sys.path],
        environment=dict(os.environ),
        cells={  # linecache has the source of notebook cells, which are in no file
            name: list(entry)
            for name, entry in list(linecache.cache.items())
            if len(entry) == 4 and entry[1] is None
        },
    )
    payload = pack(fn, args)
    # One import in the server is quicker than one in each rank, and fn's names tell that it trains.
    costly = OPTIMIZING if b"optim" in payload or "multigpu.training.trainer" in sys.modules else 0
    server, connection = ForkServer.connect(costly)
    try:
        return converse(connection, job, payload, Printer(world_size, show=show), server=server)
    finally:
        try:
            say_goodbye(connection)
        finally:
            ForkServer.leave(server)


DEEPEST = 3  # runs inside each other
ONLY_BEGIN: dict[str, Callable[[Any], bool]] = {
    "a generator function (it has a yield)": inspect.isgeneratorfunction,
    "an async generator function": inspect.isasyncgenfunction,
    "an async function": inspect.iscoroutinefunction,
}


def _refuse_platform_and_function(fn: Callable[..., Any]) -> None:
    """Raises ValueError where no rank could run ``fn``, RuntimeError where there are no ranks."""
    if sys.platform == "win32":
        raise RuntimeError(
            "run_ranks needs Linux or macOS. On Windows work in WSL2: https://aka.ms/wsl"
        )
    if not callable(fn):
        raise ValueError(
            f"fn={fn!r}: give the function itself, without calling it: run_ranks(train, 4)"
        )
    for kind, is_kind in ONLY_BEGIN.items():
        if is_kind(fn) or is_kind(type(fn).__call__):
            raise ValueError(
                f"fn={getattr(fn, '__qualname__', fn)!r} is {kind}: calling it only makes an "
                "object and runs none of its lines. Give a function that does the work and "
                "returns its result: run_ranks(lambda: list(steps()), 4), for example, or "
                "run_ranks(lambda: asyncio.run(main()), 4)"
            )
    depth = len(os.environ[MARK].split(".")) if MARK in os.environ else 0
    if depth >= DEEPEST:
        raise ValueError(
            f"this is a run_ranks inside {depth} others: a module that calls run_ranks outside of "
            "every function is imported by each rank, which then calls it again. Put the call "
            'under `if __name__ == "__main__":`'
        )


def converse(
    connection: socket.socket, job: Job, payload: bytes, printer: Printer, *, server: Server
) -> Results:
    """Hand over the job, print what the ranks print, and return what they return."""
    backend, folder = "", ""
    try:
        send(connection, dict(vars(job)), payload)
        while True:
            header, blob = receive(connection)
            match header["phase"]:
                case "refused":
                    raise ValueError(header["text"])
                case "begins":
                    backend, folder = header["backend"], header["folder"]
                    printer.begin(backend)
                case "output":
                    printer.add(header["rank"], blob)
                case "report":
                    printer.end()
                    warn_of(header["unended"])
                    return read_report(header, blob, job, backend)
    except Closed:
        printer.end()
        server.clear_up(folder)
        gone = "the process that watches over the ranks was killed, and the ranks with it. "
        text = (gone + server.error_output()).strip()
        raise RankError("exit", range(job.world_size), text) from None


def read_report(report: dict[str, Any], blob: bytes, job: Job, backend: str) -> Results:
    """The results of a run that went well.  Raises RankError."""
    members = report["members"]
    frames = [member["said"] for member in members]
    outputs = [member["output"] for member in members]
    if report["finding"]:
        finding = Finding.of(report["finding"])
        if finding.kind == "no_progress":
            stacks = {rank: stack_text(members[rank]["stack"]) for rank in finding.ranks}
            finding = finding.with_stacks(stacks)
        trace = Trace.from_frames(frames)
        raise RankError(
            finding.kind,
            finding.ranks,
            finding.text(),
            trace=trace,
            outputs=outputs,
            finding=finding,
        )
    for rank, said in enumerate(frames):
        for header in said:
            if header["phase"] == "fault":
                raise RuntimeError(f"rank {rank} broke down: {header['traceback']}")
            if header["phase"] == "returned":
                ForkServer.learn(header["costly"])
    values, start = [], 0
    for member in members:
        values.append(pickle.loads(blob[start : start + member["answer"]]))
        start += member["answer"]
    peaks = [header["peak"] for said in frames for header in said if header["phase"] == "memory"]
    return Results(
        values,
        frames=frames,
        outputs=outputs,
        backend=backend,
        memory=peaks if job.memory is not None else None,
        seconds=report["seconds"],
    )


def say_goodbye(connection: socket.socket) -> None:
    """Let the supervisor end what still runs, and wait until it has."""
    with connection:
        try:
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(GOODBYE)
            while connection.recv(1 << 20):
                pass
        except OSError as error:
            if from_a_handler(error):
                raise


BY_VALUE = threading.Lock()  # cloudpickle's list of such modules belongs to the whole process


def pack(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Function and arguments as bytes.  Raises ValueError for what cannot travel.

    Modules of the reader that no other process finds are copied, as it is done for a notebook.
    """
    import cloudpickle  # type: ignore[import-untyped]

    with BY_VALUE, contextlib.ExitStack() as stack:
        for module in own_modules():
            found = _found(module.__name__, tuple(sys.path)) == module.__file__
            if not found and module.__name__ not in cloudpickle.list_registry_pickle_by_value():
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        try:
            return pickled(
                (fn, args),
                what=f"fn={getattr(fn, '__qualname__', fn)!r} or one of its arguments",
                hint="Make such things (locks, open files, generators) inside the function.",
            )
        except TypeError as error:
            raise ValueError(str(error)) from None


def own_modules() -> list[types.ModuleType]:
    """The modules of the reader: neither Python's, nor installed, nor this package's."""
    installed = tuple(
        os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")
    )
    found = []
    for name, module in list(sys.modules.items()):
        file = vars(module).get("__file__") if isinstance(module, types.ModuleType) else None
        ours = name == "__main__" or name.partition(".")[0] == "multigpu"
        if isinstance(file, str) and not ours and not file.startswith(installed):
            found.append(module)
    return found


@functools.cache
def _found(name: str, path: tuple[str, ...]) -> str | None:
    """The file of the module ``name``, without looking at those that are imported already."""
    places: Sequence[str] | None = path
    *packages, _ = accumulate(name.split("."), "{}.{}".format)
    for package in packages:
        spec = importlib.machinery.PathFinder.find_spec(package, places)
        if spec is None or spec.submodule_search_locations is None:
            return None
        places = spec.submodule_search_locations
    spec = importlib.machinery.PathFinder.find_spec(name, places)
    return spec.origin if spec else None


class Results(Sequence[Any]):
    """One result per rank, in rank order: use it like a list.

    ``outputs``: what each rank printed.  ``backend``: "gloo on the CPU", for example.  ``memory``:
    each rank's peak in bytes, None if no limit was asked for.  ``seconds``: how long it took.
    """

    def __init__(
        self,
        values: Sequence[Any],
        *,
        frames: Sequence[Sequence[Mapping[str, Any]]],
        outputs: Sequence[str],
        backend: str,
        memory: Sequence[int] | None,
        seconds: float,
    ) -> None:
        self._values, self._frames = list(values), frames
        self.outputs, self.backend, self.seconds = list(outputs), backend, seconds
        self.memory = None if memory is None else list(memory)

    @cached_property
    def trace(self) -> Trace:
        """Every collective and message of every rank."""
        return Trace.from_frames(self._frames)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._values[index]

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Results):
            return self._values == other._values
        return list(other) == self._values if isinstance(other, list | tuple) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._values)


class Printer:
    """Takes output in parts, prints it in lines: "rank 1 | epoch 3"."""

    def __init__(self, world_size: int, *, show: bool) -> None:
        self._show = show
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = [decoder(errors="replace") for _ in range(world_size)]
        self._rests = [""] * world_size  # of lines that are not finished yet

    def begin(self, backend: str) -> None:
        """Say on what the ranks run."""
        self._print(f"{counted(len(self._rests), 'rank')}: {backend}\n")

    def add(self, rank: int, part: bytes) -> None:
        """Print the lines that are whole now."""
        text = self._rests[rank] + self._decoders[rank].decode(part)
        *lines, self._rests[rank] = text.split("\n")
        self._print("".join(f"rank {rank} | {line}\n" for line in lines))

    def end(self) -> None:
        """Print lines that were never finished."""
        for rank, rest in enumerate(self._rests):
            if rest:
                self._print(f"rank {rank} | {rest}\n")
        self._rests = [""] * len(self._rests)

    def _print(self, text: str) -> None:
        if self._show and text:
            sys.stdout.write(text)
            sys.stdout.flush()
