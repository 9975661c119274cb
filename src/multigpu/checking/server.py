"""The warm server: imports torch once, then forks one worker per request.

    python -m multigpu.checking.server FD

``FD`` is a socket to the judge, and the server lives as long as the other end of it is open.  It
runs no operator on tensors and never touches a GPU: threads and CUDA do not survive a fork.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from typing import Any

from multigpu.checking.loading import compiled
from multigpu.checking.request import Request
from multigpu.checking.tracing import forbidden_code
from multigpu.checking.worker import Worker
from multigpu.ranks import process_tree
from multigpu.ranks.frames import Closed, receive, send
from multigpu.ranks.proof import Watch
from multigpu.ranks.supervisor import CallerGone, lead
from multigpu.ranks.warming import import_costly, warming_up


def main(descriptor: int) -> None:
    """Serve until the judge is gone."""
    judge = socket.socket(fileno=descriptor)
    judge.set_inheritable(False)
    process_tree.adopt_orphans()
    warm_up()
    with contextlib.suppress(Closed, CallerGone):
        while True:
            header, payload = receive(judge)
            report, answer = serve(Request.of(header), payload, judge)
            send(judge, report, answer)
            import_costly(imported_by(report))  # once, for all workers to come
    os._exit(0)  # there is nothing to clean up, and torch takes its time with it


def warm_up() -> None:
    """Import what workers need, so that none has to."""
    with warming_up():
        import numpy.ctypeslib  # noqa: F401
        import safetensors.torch  # noqa: F401
        import torch.utils.serialization.config  # noqa: F401

        import multigpu.checking.parcel
        import multigpu.checking.specimens
        import multigpu.gpus.machine
        import multigpu.ranks.tracing  # noqa: F401


def imported_by(report: dict[str, Any]) -> int:
    """Which of ``warming.COSTLY`` the workers of a run have imported."""
    costly = 0
    for member in report["members"]:
        for frame in member["said"]:
            costly |= frame.get("costly", 0)
    return costly


def serve(request: Request, payload: bytes, judge: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Run one worker, or one per rank, and report how it ended."""
    folder = tempfile.mkdtemp(prefix="multigpu-check-")
    compiled(request.source, request.path)  # once, for all workers, and so the next
    forbidden_code(request.refused)
    try:
        report, answers = lead(
            request.ranks or 1,
            Worker(request, payload, folder),
            limits=request.limits,
            caller=judge,
            watch=Watch(request.ranks, timeout=None) if request.ranks else None,
        )
        return report, b"".join(answers)
    finally:
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
