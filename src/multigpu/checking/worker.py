"""What the processes that run a learner's code do: one worker for each run, or one per rank.

They come from a server (``multigpu.ranks.server``) that has imported this module. A worker reports
in frames: each phase as it begins, then the answer. ``multigpu.ranks.supervisor`` starts and ends
its process. A run without a clean end never passes.
"""

import contextlib
import importlib.machinery
import importlib.util
import inspect
import os
import random
import resource
import sys
import sysconfig
import threading
import time
import types
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from multigpu.checking import stand_ins
from multigpu.checking.catalog import Exercise
from multigpu.checking.encoding import Encoder, Request
from multigpu.checking.out_of_reach import put_out_of_reach
from multigpu.devices import meters
from multigpu.ranks.backend import become_rank, choose_backend, free_port
from multigpu.ranks.errors import describe_exception
from multigpu.ranks.frames import Write
from multigpu.ranks.memory_limit import memory_within
from multigpu.ranks.proof import Watch
from multigpu.ranks.recorder import inside
from multigpu.ranks.supervisor import Supervisor, limit
from multigpu.ranks.warming import costly_imports

BEHIND = 10  # of the kernel's priorities; with 19 few messages would come through on a busy machine
STANDARD_LIBRARY = sysconfig.get_path("stdlib")
DEVICES = os.path.dirname(meters.__file__) + os.sep  # this layer brings GPUs into threads
WATCHED = "the exercise"  # in the place of a forbidden name


# --- in the server -------------------------------------------------------------------------------


def warm_up() -> None:
    """Import what workers need, in the server, so that none has to."""
    import cloudpickle  # type: ignore[import-untyped]
    import numpy.ctypeslib  # noqa: F401
    import safetensors.torch  # noqa: F401
    import torch

    import multigpu.checking.comparing
    import multigpu.checking.running
    import multigpu.checking.specimen
    import multigpu.devices.machine
    import multigpu.ranks.memory_limit
    import multigpu.ranks.traced_group  # noqa: F401

    cloudpickle.loads(cloudpickle.dumps(torch.zeros(1)))  # with what torch imports for that
    stand_ins.spare_the_compiler()


def serve(request: Request, judge: Connection, folder: str) -> None:
    """Run one worker, or one per rank, and report how it ended."""
    forbidden_code(request.exercise.chapter.refused)  # once, for all workers
    # Compiled once, too. Warnings and errors are left to each worker, whose output is shown.
    with contextlib.suppress(Exception), warnings.catch_warnings(action="error"):
        compiled(request.source, request.path)
    workers = Supervisor(
        request.ranks or 1,
        partial(work, request, folder, free_port()),
        limits=request.limits,
        caller=judge,
        watch=Watch(request.ranks, timeout=None) if request.ranks else None,
    )
    judge.send(("report", workers.run()))


# --- a worker ------------------------------------------------------------------------------------


def work(request: Request, folder: str, port: int, number: int, say: Write) -> None:
    """The body of one worker, or of one per rank.  ``folder`` and ``port`` are those of all."""
    import torch

    own = os.path.join(folder, str(number))
    os.mkdir(own)
    os.chdir(own)
    if request.backing == "cpu" and sys.platform == "linux":  # CUDA maps far more
        counted = Path("/proc/self/statm").read_text().split()[5]  # as RLIMIT_DATA counts
        data = int(counted) * resource.getpagesize()
        # A little before the supervisor would end it: a MemoryError names the line.
        limit(resource.RLIMIT_DATA, data + request.limits.host_memory * 4 // 5)
    joined = group(request, number, os.path.join(folder, "store"), port, say)
    with joined if request.ranks else machine(request) as devices_or_rank:
        if request.backing != "cpu" or not request.ranks:
            torch.manual_seed(number)
        else:  # torch.manual_seed would also look for every other kind of device
            torch.default_generator.manual_seed(number)
        random.seed(number)  # Python seeds it again in every forked process
        run(request, devices_or_rank, say)


def run(request: Request, devices_or_rank: Any, say: Write) -> None:
    """Import the learner's module, call the drive, hand over what it returns."""
    import cloudpickle

    drive, arguments = cloudpickle.loads(request.drive)
    chapter = request.exercise.chapter
    forbidden = forbidden_code(chapter.refused)
    collectives = forbidden_code(["torch.distributed"]) if chapter.messages_only else {}
    put_out_of_reach(request.out_of_reach, os.path.dirname(request.path))
    tracer = Tracer(request.path, request.return_lines, forbidden, say)
    encoder = Encoder()
    stand_ins.Loading.tell = partial(say, {"phase": "loads_compiler"})
    say({"phase": "importing"})
    try:
        tracer.start()
        submission = load(request)
        exercise = find(submission, request.exercise)
        tracer.watch(exercise, forbidden | collectives)
        say({"phase": "running"})
        result = drive(submission, devices_or_rank, *arguments)
    except BaseException as error:  # sys.exit and KeyboardInterrupt too
        tracer.stop()
        with contextlib.suppress(Exception):  # the learner's code may have closed it
            print(end="", flush=True)  # the run may be ended as soon as this is known
        unfit = error.args if isinstance(error, Unfit) else None
        said = describe_exception(error) | {"unfit": unfit} | tracer.notes()
        said |= {"time": time.monotonic(), "costly": costly_imports(), "inside": inside(error)}
        say({"phase": "raised", **said})
        return
    tracer.stop()
    say({"phase": "returning", **tracer.notes()})
    say({"phase": "answer"}, encoder.encode(result))
    say({"phase": "returned", "time": time.monotonic(), "costly": costly_imports()})


@contextlib.contextmanager
def machine(request: Request) -> Iterator[list[Any]]:
    """The GPUs of this run."""
    import torch

    from multigpu.devices import virtual_gpus

    if request.backing == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # what asks for the states of all GPUs uses none
    if request.backing == "real" or not request.gpus:
        yield [torch.device("cuda", index) for index in range(request.gpus)]
        return
    memory = request.memory or "8 GiB"
    with virtual_gpus(request.gpus, memory=memory, backing=request.backing) as virtual:
        yield virtual.devices


@contextlib.contextmanager
def group(request: Request, rank: int, store: str, port: int, say: Write) -> Iterator[int]:
    """The process group of all ranks.  It is not destroyed: another rank may still be using it."""
    import torch
    import torch.distributed as dist

    if request.backing == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # rank_device() is the CPU then
    backend = choose_backend(request.ranks, asked=None, gpus=torch.cuda.device_count())
    become_rank(rank, request.ranks, trace=True, write=say, port=port)
    rendezvous = dist.FileStore(store, request.ranks)  # type: ignore[attr-defined]
    dist.init_process_group(backend.name, store=rendezvous, rank=rank, world_size=request.ranks)
    # No learner's code runs while a rank is still joining: it could cut the connection.
    rendezvous.set(f"joined {rank}", "")
    rendezvous.wait([f"joined {other}" for other in range(request.ranks)])
    put_behind("gloo_tcp_loop")
    memory = None if request.memory is None else meters.parse_bytes(request.memory)
    with memory_within(memory, rank, say):
        yield rank


def put_behind(thread: str) -> None:
    """Give this process's threads of this name a low priority.

    While a message has arrived that is not asked for yet, gloo's thread polls without a pause, and
    a rank that is behind would share its core with that thread. Only Linux lists threads.
    """
    behind = os.getpriority(os.PRIO_PROCESS, 0) + BEHIND
    for folder in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # a thread may end meanwhile
            if (folder / "comm").read_text().strip() == thread:
                os.setpriority(os.PRIO_PROCESS, int(folder.name), behind)


# --- the learner's module ------------------------------------------------------------------------


class Unfit(Exception):
    """The learner's module has no function that can be called as the checks call it.

    Its arguments are the id of the message, and what there is instead.
    """


def load(request: Request) -> types.ModuleType:
    """Import the learner's module from its text.

    Its folder comes last on ``sys.path``: a ``random.py`` beside it hides nothing.
    """
    name = os.path.splitext(os.path.basename(request.path))[0]
    sys.dont_write_bytecode = True
    sys.path.append(os.path.dirname(request.path))
    module = types.ModuleType(name)
    module.__file__ = request.path
    sys.modules[name] = module
    module.__code__ = compiled(request.source, request.path)  # type: ignore[attr-defined]
    exec(module.__code__, module.__dict__)
    return module


@lru_cache(maxsize=1)
def compiled(source: str, path: str) -> types.CodeType:
    """The code of a module: made in every worker it takes a seventh of a short run."""
    return compile(source, path, "exec", dont_inherit=True)


def find(submission: types.ModuleType, exercise: Exercise) -> Any:
    """The learner's function, if it can be called as the checks call it."""
    name, called = exercise.function, exercise.signature
    found = vars(submission).get(name)
    if found is None:
        own = vars(submission).items()
        names = [n for n, v in own if getattr(v, "__module__", None) == submission.__name__]
        raise Unfit("missing_function", ", ".join(names))
    if not callable(found):
        raise Unfit("signature", f"{name} is not a function but a {type(found).__name__}")
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # built in C: the call itself will tell
        return found
    try:
        signature.bind(*called.positional, **dict.fromkeys(called.keyword_only))
    except TypeError as error:
        empty = inspect.Signature.empty  # the names alone are easier to read
        bare = [p.replace(annotation=empty) for p in signature.parameters.values()]
        bare_signature = signature.replace(parameters=bare, return_annotation=empty)
        raise Unfit("signature", f"{name}{bare_signature}") from error
    return found


# --- watching it run -----------------------------------------------------------------------------


@dataclass
class Tracer:
    """Notes of one run of an exercise.

    ``path`` is the learner's file; those beside it are the learner's too.  ``return_lines`` comes
    from the function of this name.  ``forbidden`` maps a file or a folder of code that the chapter
    refuses to its name; the first call of it by the learner's code is reported at once.
    """

    path: str
    return_lines: dict[int, int]
    forbidden: dict[str, str]
    say: Write
    calls: int = 0
    # When the exercise returned, and from which return statement: None if it just ended.
    returned: deque[tuple[float, int | None]] = field(default_factory=lambda: deque(maxlen=1000))
    # What is known of a code by its id, which is quicker than its hash, and the codes themselves,
    # so that no other one gets the same id.
    _known: dict[int, str | None] = field(default_factory=dict)
    _kept: list[types.CodeType] = field(default_factory=list)
    _returning: dict[int, int] = field(default_factory=dict)  # frame: line of its return statement

    def __post_init__(self) -> None:
        self._folder = os.path.dirname(self.path)
        self._line = 1  # where the exercise begins

    def watch(self, exercise: Any, forbidden: Mapping[str, str]) -> None:
        """Follow the calls of a function, or of all methods of a class.

        Report it if it comes from ``forbidden`` code itself.
        """
        codes = codes_of(exercise)
        self.calls = 0 if codes else 1  # a function in C cannot be followed: it counts as called
        own = [code.co_firstlineno for code in codes if code.co_filename == self.path]
        self._line = min(own, default=1)
        called = exercise
        while isinstance(called, partial):  # its own call is in C, and has no frame
            called = called.func
        for part in getattr(called, "__mro__", (called,)):  # it may be ready-made, or inherit
            code = getattr(part, "__code__", None)
            if code and os.path.dirname(code.co_filename) == self._folder:
                continue  # functools.wraps gives it the module of another one
            module = sys.modules.get(getattr(part, "__module__", None) or "")
            if name := name_of(getattr(module, "__file__", None) or "", forbidden):
                where = (self.path, self._line) if own else None
                self._report(f"{name}.{part.__qualname__}", where)
                break
        self._kept += codes
        self._known |= {id(code): WATCHED for code in codes}

    def start(self) -> None:
        """Begin in this thread and in all that it will start."""
        threading.settrace(self._call)
        sys.settrace(self._call)

    def stop(self) -> None:
        """End in this thread."""
        sys.settrace(None)
        threading.settrace(None)

    def notes(self) -> dict[str, Any]:
        """What was seen, as plain data."""
        return {"calls": self.calls, "returned": list(self.returned)}

    def _call(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        try:
            name = self._known[id(code)]
        except KeyError:
            name = name_of(code.co_filename, self.forbidden)
            if code.co_name == "<module>":  # to import is not to use
                name = None
            self._kept.append(code)
            self._known[id(code)] = name
        if name is None:
            return None
        if name == WATCHED:
            self.calls += 1
            return self._inside
        if self.forbidden and (caller := self._caller(frame.f_back)) is not None:
            if "<locals>" not in code.co_qualname:
                name = f"{name}.{code.co_qualname.partition('.')[0]}"  # "….DataParallel"
            self._report(name, caller)
        return None

    def _report(self, name: str, where: tuple[str, int] | None) -> None:
        self.forbidden = {}  # once is enough
        self.say({"phase": "forbidden", "name": name, "where": where})

    def _inside(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and file == self.path and line in self.return_lines:
            self._returning[id(frame)] = self.return_lines[line]
        elif event == "return":  # at the end of a `with` block the line is that of the `with`
            self.returned.append((time.monotonic(), self._returning.pop(id(frame), None)))
        return self._inside

    def _caller(self, frame: types.FrameType | None) -> tuple[str, int] | None:
        """The learner's line that led here, if only Python's library and ours are in between."""
        first = frame
        while frame is not None:
            file = frame.f_code.co_filename
            if os.path.dirname(file) == self._folder:
                return file, frame.f_lineno
            if "-packages" in file or not file.startswith((STANDARD_LIBRARY, DEVICES, "<")):
                return None
            frame = frame.f_back
        # A thread of Python's library: only the learner's code can have given it this function.
        return None if first is None else (self.path, self._line)


def codes_of(exercise: Any) -> list[types.CodeType]:
    """The code of a function, or of a class's methods: its own first, then those it inherits.

    A class of the learner's may inherit from another one of the learner's; what comes from
    elsewhere, such as nn.Module, is not the exercise.
    """
    functions = [exercise]
    if isinstance(exercise, type):
        module = exercise.__module__
        own = [kind for kind in exercise.__mro__ if kind.__module__ == module]
        functions = [value for kind in own for value in vars(kind).values()]
    functions = [f.fget if isinstance(f, property) else f for f in functions]
    codes = [getattr(inspect.unwrap(function), "__code__", None) for function in functions]
    return [code for code in codes if isinstance(code, types.CodeType)]


def name_of(file: str, forbidden: Mapping[str, str]) -> str | None:
    """The name of the forbidden code that a file belongs to."""
    return next((name for path, name in forbidden.items() if file.startswith(path)), None)


def forbidden_code(names: Iterable[str]) -> dict[str, str]:
    """Where the code of forbidden modules is, without those that are not written in Python."""
    return {place: name for name in names if (place := place_of_module(name))}


@cache
def place_of_module(name: str) -> str:
    """A package's folder, or a module's file; empty if there is none.

    Found without importing: most forbidden modules are never needed.
    """
    if name == "torch.cuda.comm":  # virtual GPUs have their own; torch's is in torch.nn.parallel
        name = "multigpu.devices.comm"
    first, *inner = name.split(".")
    # By its path: Python has some modules frozen, which then say of no file that they are there.
    spec = importlib.machinery.PathFinder.find_spec(first) or importlib.util.find_spec(first)
    if spec is None:
        return ""
    folders = spec.submodule_search_locations
    outermost = next(iter(folders)) if folders else (spec.origin or "").removesuffix(".py")
    path = os.path.join(outermost, *inner)
    if os.path.isdir(path):
        return os.path.join(path, "")
    return f"{path}.py" if os.path.isfile(f"{path}.py") else ""
