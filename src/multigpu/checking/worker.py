"""The process in which a learner's code runs: forked from the warm server, used once.

It reports in frames: each phase as it begins, then the answer, and at the very end that it ended
cleanly.  A run without that last frame never passes.
"""

import atexit
import contextlib
import faulthandler
import multiprocessing.util
import os
import random
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from multigpu.checking.loading import find, first_line, load
from multigpu.checking.raised import SHOWN_TEXT, describe_exception
from multigpu.checking.request import BROKEN, Request
from multigpu.checking.tracing import Tracer, forbidden_code
from multigpu.checking.wire import Encoder
from multigpu.ranks import family
from multigpu.ranks.frames import Mouth


@dataclass(frozen=True)
class Channels:
    """The file descriptors a worker needs; all others are closed."""

    mouth: int  # frames to the server
    output: int  # what the learner's code prints
    stack: int  # where the code stands, when asked or when it dies
    lifeline: int  # closes when the server is gone
    release: int | None = None  # closes when a rank that is done may leave


@dataclass(frozen=True)
class Rank:
    """Which one of several workers this is."""

    rank: int
    world: int
    store: str  # the file through which they find each other


def live(
    request: Request,
    payload: bytes,
    channels: Channels,
    *,
    token: bytes,
    prctl: Any,
    server: int,
    rank: Rank | None = None,
) -> NoReturn:
    """Run one request and end the process.  Called right after the fork."""
    family.die_with_parent(prctl, server)
    enter_own_world(channels, request)
    mouth = Mouth(channels.mouth, token)
    mouth.say({"phase": "started", "pid": os.getpid(), "time": time.monotonic()})
    leave = os._exit
    os._exit = _reporting_exit(mouth, leave)  # type: ignore[assignment]
    try:
        run(request, payload, mouth, rank)
        mouth.say({"phase": "ending"})
        finish()
        if channels.release is not None:  # others may still need what this process has to give
            os.read(channels.release, 1)  # until it is closed
        mouth.say({"phase": "ended"})
        leave(0)
    except BaseException:  # a fault of ours, or the learner's code broke what we use
        mouth.say({"phase": "fault", "traceback": traceback.format_exc()[-SHOWN_TEXT:]})
    finally:
        leave(BROKEN)


def enter_own_world(channels: Channels, request: Request) -> None:
    """Own session, own descriptors, nothing to read, limits that the kernel holds."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, channels.output), (2, channels.output)):
        os.dup2(source, target)
    wanted = (channels.mouth, channels.stack, channels.lifeline, channels.release)
    keep = sorted({descriptor for descriptor in wanted if descriptor is not None})
    for low, high in zip([2, *keep], [*keep, 65536], strict=True):
        os.closerange(low + 1, high)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable(channels.stack, all_threads=True)
    faulthandler.register(signal.SIGUSR1, channels.stack, all_threads=True)
    if sys.platform != "linux":
        threading.Thread(target=_end_with, args=(channels.lifeline,), daemon=True).start()
    atexit._clear()  # what the server's own libraries registered takes 60 ms
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, request.limits.file_size)
    if request.backing == "cpu" and sys.platform == "linux":  # CUDA maps far more than it uses
        # A little before the watch would end it: a MemoryError names the line, a kill does not.
        _limit(resource.RLIMIT_DATA, _data_now() + request.limits.host_memory * 4 // 5)


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _data_now() -> int:
    """The bytes that RLIMIT_DATA counts, as the kernel sees them now."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[5]) * resource.getpagesize()


def _end_with(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def _reporting_exit(mouth: Mouth, leave: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
    """``os._exit`` for the learner's code: it tells from which line, then it does exit."""

    def _exit(status: int) -> NoReturn:
        frame = sys._getframe(1)
        mouth.say(
            {
                "phase": "left",
                "status": int(status),
                "where": [frame.f_code.co_filename, frame.f_lineno],
                "time": time.monotonic(),
            }
        )
        leave(status)

    return _exit


def run(request: Request, payload: bytes, mouth: Mouth, rank: Rank | None) -> None:
    """Everything from the drive's arrival to the answer's departure."""
    import cloudpickle  # type: ignore[import-untyped]
    import torch

    drive, arguments = cloudpickle.loads(payload)  # from the judge: the only pickle there is
    tracer = Tracer(request.path, request.return_lines, forbidden_code(request.refused))
    with joined(rank, mouth) if rank else machine(request) as (given, tensor_types):
        encoder = Encoder(tensor_types)
        torch.manual_seed(0)
        random.seed(0)  # Python seeds it anew in every forked process
        mouth.say({"phase": "importing"})
        try:
            tracer.start()
            submission = load(request)
            exercise = find(submission, request)
            tracer.watch(exercise)
            mouth.say({"phase": "running"})
            result = drive(submission, *given, *arguments)
        except BaseException as error:  # sys.exit and KeyboardInterrupt too
            tracer.stop()
            said = {**describe_exception(error), **notes(tracer), "time": time.monotonic()}
            mouth.say({"phase": "raised", **said})
            return
        tracer.stop()
        mouth.say({"phase": "returning", **notes(tracer), "line": first_line(exercise)})
        mouth.say({"phase": "answer"}, encoder.encode(result))
        mouth.say({"phase": "returned", "time": time.monotonic()})


Given = tuple[tuple[Any, ...], frozenset[type]]


@contextlib.contextmanager
def machine(request: Request) -> Iterator[Given]:
    """The GPUs of this run, as the drive gets them, and the types that are a tensor on them."""
    import torch

    from multigpu.gpus import virtual_gpus
    from multigpu.gpus.tensor import VirtualTensor

    tensor_types = frozenset({torch.Tensor, torch.nn.Parameter, VirtualTensor})
    if request.backing == "real" or not request.gpus:
        yield ([torch.device("cuda", index) for index in range(request.gpus)],), tensor_types
        return
    memory = request.memory or "8 GiB"
    with virtual_gpus(request.gpus, memory=memory, backing=request.backing) as virtual:
        yield (virtual.devices,), tensor_types


@contextlib.contextmanager
def joined(rank: Rank, mouth: Mouth) -> Iterator[Given]:
    """The process group of all ranks, and the types that are a tensor in it.

    The group stays: another rank may still be busy with it when this one is done.
    """
    import torch
    from torch._C._distributed_c10d import FileStore
    from torch.distributed import init_process_group

    from multigpu.ranks.tracing import start_recording

    os.environ |= {
        "RANK": str(rank.rank),
        "LOCAL_RANK": str(rank.rank),
        "WORLD_SIZE": str(rank.world),
        "LOCAL_WORLD_SIZE": str(rank.world),
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
    }
    start_recording(mouth.say)
    store = FileStore(rank.store, rank.world)
    init_process_group("gloo", store=store, rank=rank.rank, world_size=rank.world)
    mouth.say({"phase": "joined_group", "time": time.monotonic()})
    yield (), frozenset({torch.Tensor, torch.nn.Parameter})


def notes(tracer: Tracer) -> dict[str, Any]:
    """What the tracer saw, as plain data."""
    return {"calls": tracer.calls, "returned": tracer.returned, "used": tracer.used}


def finish() -> None:
    """End as Python ends a program: wait for its threads, then run what was registered."""
    threading._shutdown()  # type: ignore[attr-defined]
    multiprocessing.util._exit_function()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
