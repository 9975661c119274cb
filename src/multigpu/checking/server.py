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
from typing import Any

from multigpu.checking.request import Request
from multigpu.checking.supervision import JudgeGone, Supervision
from multigpu.checking.worker import Channels, live
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

    import multigpu.gpus.machine  # noqa: F401

    torch.set_num_threads(1)
    spare_the_compiler()
    gc.collect()
    gc.freeze()  # a worker's garbage collection then copies none of these pages
    gc.enable()


def serve(request: Request, payload: bytes, judge: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Run one worker and report how it ended."""
    folder = tempfile.mkdtemp(prefix="multigpu-check-")
    names = ("mouth", "output", "stack", "lifeline")
    pipes = {name: os.pipe() for name in names}
    readers = {name: pipes[name][0] for name in names[:3]}
    ours = [*readers.values(), pipes["lifeline"][1]]
    theirs = [*(pipes[name][1] for name in names[:3]), pipes["lifeline"][0]]
    token, server, prctl = secrets.token_bytes(16), os.getpid(), family.bind_prctl()
    try:
        pid = os.fork()
        if pid == 0:
            os.chdir(folder)
            live(request, payload, Channels(*theirs), token=token, prctl=prctl, server=server)
        for descriptor in theirs:
            os.close(descriptor)
        return Supervision(pid, readers, limits=request.limits, judge=judge).watch(token)
    finally:
        for descriptor in ours:
            os.close(descriptor)
        remove(folder)


def remove(folder: str) -> None:
    """Delete what a worker left.  Folders in folders without end are beyond Python's own way."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.exists(folder):
        quiet = subprocess.DEVNULL
        subprocess.run(["rm", "-rf", folder], stdin=quiet, stdout=quiet, stderr=quiet, check=False)


if __name__ == "__main__":
    main(int(sys.argv[1]))
