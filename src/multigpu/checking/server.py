"""The warm server: imports torch once, then forks one worker per request.

    python -m multigpu.checking.server FD

``FD`` is a socket to the judge, and the server lives as long as the other end of it is open.  It
runs no operator on tensors and never touches a GPU: threads and CUDA do not survive a fork.
"""

import contextlib
import gc
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from multigpu.checking.rank_supervision import Member, RankSupervision
from multigpu.checking.request import Request
from multigpu.checking.supervision import JudgeGone, Supervision
from multigpu.checking.worker import Channels, Rank, live
from multigpu.ranks import family
from multigpu.ranks.frames import Closed, receive, send
from multigpu.ranks.lean import spare_the_compiler


def main(descriptor: int) -> None:
    """Serve until the judge is gone."""
    judge = socket.socket(fileno=descriptor)
    judge.set_inheritable(False)
    family.adopt_orphans()
    warm_up()
    with contextlib.suppress(Closed, JudgeGone):
        while True:
            header, payload = receive(judge)
            report, answer = serve(Request.of(header), payload, judge)
            send(judge, report, answer)
    os._exit(0)  # there is nothing to clean up, and torch takes its time with it


def warm_up() -> None:
    """Import what workers need, so that none has to."""
    gc.disable()  # importing leaves no garbage, and looking for it takes a tenth of the time
    import cloudpickle  # type: ignore[import-untyped]  # noqa: F401
    import numpy.ctypeslib  # noqa: F401
    import safetensors.torch  # noqa: F401
    import torch.utils.serialization.config

    import multigpu.gpus.machine
    import multigpu.ranks.tracing  # noqa: F401

    torch.set_num_threads(1)
    spare_the_compiler()
    gc.collect()
    gc.freeze()  # a worker's garbage collection then copies none of these pages
    gc.enable()


def serve(request: Request, payload: bytes, judge: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Run one worker, or one per rank, and report how it ended."""
    folder = tempfile.mkdtemp(prefix="multigpu-check-")
    try:
        if request.ranks:
            return serve_ranks(request, payload, judge, folder)
        token = secrets.token_bytes(16)
        with forked(request, payload, folder, token) as worker:
            limits = request.limits
            return Supervision(worker.pid, worker.readers, limits=limits, judge=judge).watch(token)
    finally:
        remove(folder)


def serve_ranks(
    request: Request, payload: bytes, judge: socket.socket, folder: str
) -> tuple[dict[str, Any], bytes]:
    """Run one worker per rank."""
    token = secrets.token_bytes(16)
    with contextlib.ExitStack() as stack:
        members = []
        for number in range(request.ranks):
            rank = Rank(number, request.ranks, os.path.join(folder, "store"))
            own = os.path.join(folder, f"rank{number}")
            os.mkdir(own)
            members.append(stack.enter_context(forked(request, payload, own, token, rank)))
        return RankSupervision(members, limits=request.limits, judge=judge).watch(token)


@contextlib.contextmanager
def forked(
    request: Request, payload: bytes, folder: str, token: bytes, rank: Rank | None = None
) -> Iterator[Member]:
    """A worker in ``folder``: its process, our ends of its pipes, and the one that releases it."""
    names = ("mouth", "output", "stack", "lifeline", "release")
    pipes = {name: os.pipe() for name in names}
    readers = {name: pipes[name][0] for name in names[:3]}
    release = open(pipes["release"][1], "wb", buffering=0)  # noqa: SIM115 (closed to release)
    ours = [*readers.values(), pipes["lifeline"][1]]
    theirs = [*(pipes[name][1] for name in names[:3]), pipes["lifeline"][0], pipes["release"][0]]
    server, prctl = os.getpid(), family.bind_prctl()
    try:
        pid = os.fork()
        if pid == 0:
            os.chdir(folder)
            channels = Channels(*theirs) if rank else Channels(*theirs[:4])
            live(request, payload, channels, token=token, prctl=prctl, server=server, rank=rank)
        for descriptor in theirs:
            os.close(descriptor)
        yield Member(pid, readers, release)
    finally:
        release.close()
        for descriptor in ours:
            os.close(descriptor)


def remove(folder: str) -> None:
    """Delete what a worker left.  Folders in folders without end are beyond Python's own way."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.exists(folder):
        quiet = subprocess.DEVNULL
        subprocess.run(["rm", "-rf", folder], stdin=quiet, stdout=quiet, stderr=quiet, check=False)


if __name__ == "__main__":
    main(int(sys.argv[1]))
