"""What a worker does: it runs one request for the judge, once, in a process of its own.

It reports in frames: each phase as it begins, then the answer.  How the process begins and ends is
the matter of ``multigpu.ranks.child_process``.  A run without a clean end never passes.
"""

import contextlib
import os
import random
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multigpu.checking.loading import find, first_line, load
from multigpu.checking.raised import describe
from multigpu.checking.request import Request
from multigpu.checking.tracing import Tracer, forbidden_code
from multigpu.checking.wire import Encoder
from multigpu.gpus.memory import parse_bytes
from multigpu.ranks.child_process import limit
from multigpu.ranks.frames import Say
from multigpu.ranks.rank import Listening, choose_backend, join_group, now
from multigpu.ranks.warming import costly_imports

BEHIND = 10  # of the kernel's priorities; with 19 few messages would come through on a busy machine


@dataclass(frozen=True)
class Worker:
    """The body of one worker, or of one per rank.  ``folder`` is theirs."""

    request: Request
    payload: bytes
    folder: str

    def __call__(self, number: int, say: Say) -> None:
        """Everything from the drive's arrival to the answer's departure."""
        own = os.path.join(self.folder, str(number))
        os.mkdir(own)
        os.chdir(own)
        if self.request.backing == "cpu" and sys.platform == "linux":  # CUDA maps far more
            # A little before the leader would end it: a MemoryError names the line.
            limit(resource.RLIMIT_DATA, data_now() + self.request.limits.host_memory * 4 // 5)
        store = os.path.join(self.folder, "store")
        ranks = self.request.ranks
        listening = Listening(say)
        joined = group(self.request, number, store, listening)
        with joined if ranks else machine(self.request) as place:
            seed(number, everywhere=self.request.backing != "cpu" or not ranks)
            run(self.request, self.payload, place, listening)


def seed(number: int, *, everywhere: bool) -> None:
    """Random numbers of this worker: ranks that are to start equal have to be made so."""
    import torch

    if everywhere:
        torch.manual_seed(number)
    else:  # without a word to every kind of device that there could be
        torch.default_generator.manual_seed(number)
    random.seed(number)  # Python seeds it anew in every forked process


def data_now() -> int:
    """The bytes that RLIMIT_DATA counts, as the kernel sees them now."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[5]) * resource.getpagesize()


@dataclass(frozen=True)
class Place:
    """What a drive is given to run on, and which types are exactly a tensor there."""

    given: tuple[Any, ...]
    tensor_types: frozenset[type]


def run(request: Request, payload: bytes, place: Place, say: Listening) -> None:
    """Import the learner's module, call the drive, hand over what it returns."""
    import cloudpickle  # type: ignore[import-untyped]

    drive, arguments = cloudpickle.loads(payload)  # from the judge: the only pickle there is
    tracer = Tracer(request.path, request.return_lines, forbidden_code(request.refused))
    encoder = Encoder(place.tensor_types)
    say({"phase": "importing"})
    try:
        tracer.start()
        submission = load(request)
        exercise = find(submission, request)
        tracer.watch(exercise)
        say({"phase": "running"})
        result = drive(submission, *place.given, *arguments)
    except BaseException as error:  # sys.exit and KeyboardInterrupt too
        tracer.stop()
        with contextlib.suppress(Exception):  # the learner's code may have closed it
            print(end="", flush=True)  # the run may be ended as soon as this is known
        said = {**describe(error), **notes(tracer), **now(), "costly": costly_imports()}
        say({"phase": "raised", **said, "inside": say.inside(error)})
        return
    tracer.stop()
    say({"phase": "returning", **notes(tracer), "line": first_line(exercise)})
    say({"phase": "answer"}, encoder.encode(result))
    say({"phase": "returned", **now(), "costly": costly_imports()})


@contextlib.contextmanager
def machine(request: Request) -> Iterator[Place]:
    """The GPUs of this run."""
    import torch

    from multigpu.gpus import virtual_gpus
    from multigpu.gpus.tensor import VirtualTensor

    tensor_types = frozenset({torch.Tensor, torch.nn.Parameter, VirtualTensor})
    if request.backing == "real" or not request.gpus:
        devices = [torch.device("cuda", index) for index in range(request.gpus)]
        yield Place((devices,), tensor_types)
        return
    memory = request.memory or "8 GiB"
    with virtual_gpus(request.gpus, memory=memory, backing=request.backing) as virtual:
        yield Place((virtual.devices,), tensor_types)


@contextlib.contextmanager
def group(request: Request, rank: int, store: str, say: Say) -> Iterator[Place]:
    """The process group of all ranks.  It stays: another rank may be busy with it still."""
    import torch

    if request.backing == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # rank_device() is the CPU then
    backend = choose_backend(request.ranks, asked=None, gpus=torch.cuda.device_count())
    join_group(rank, request.ranks, store=store, backend=backend.name, trace=True, say=say)
    put_behind("gloo_tcp_loop")
    place = Place((), frozenset({torch.Tensor, torch.nn.Parameter}))
    if request.memory is None:
        yield place
        return
    from multigpu.ranks.memory import limited_memory

    with limited_memory(parse_bytes(request.memory), rank=rank) as peak:
        yield place
        say({"phase": "memory", "peak": peak()})


def put_behind(thread: str) -> None:
    """Let this process's threads of this name have little of a core that others want, too.

    A message that is there before it is asked for keeps gloo's thread looking at it without a
    pause, and a rank that is behind would share its core with that. Only Linux shows threads.
    """
    behind = os.getpriority(os.PRIO_PROCESS, 0) + BEHIND
    for folder in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # a thread may end meanwhile
            if (folder / "comm").read_text().strip() == thread:
                os.setpriority(os.PRIO_PROCESS, int(folder.name), behind)


def notes(tracer: Tracer) -> dict[str, Any]:
    """What the tracer saw, as plain data."""
    return {"calls": tracer.calls, "returned": tracer.returned, "used": tracer.used}
