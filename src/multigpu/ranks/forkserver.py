"""Imports torch once, then forks one supervisor per run.  The supervisor forks the ranks.

    python -m multigpu.ranks.forkserver FD

``FD`` is a socket to the caller.  Through it comes one more socket for each run, which is that
run's own way to the caller: so many runs go on side by side.  The byte that comes with it says what
the caller has imported, or ranks so far (``warming.COSTLY``): now the server does it for them.
It lives as long as the other end of ``FD`` is open, touches no GPU and has one thread: threads and
CUDA survive no fork.
"""

import contextlib
import os
import select
import shutil
import socket
import sys
import time
from typing import Any

import psutil

from multigpu.ranks import process_tree
from multigpu.ranks.frames import Closed, receive, send
from multigpu.ranks.limits import UNLIMITED
from multigpu.ranks.proof import Watch
from multigpu.ranks.rank import Backend, Job, Rank, choose_backend
from multigpu.ranks.server import enter_run_folder, make_run_folder
from multigpu.ranks.supervisor import CallerGone, lead
from multigpu.ranks.warming import import_costly, warming_up

GLANCE = 0.2  # seconds between two looks for leaders that have ended
PATIENCE = 10.0  # seconds for leaders to end their runs once the caller is gone


def main(descriptor: int) -> None:
    """Serve until the caller is gone."""
    caller = socket.socket(fileno=descriptor)
    caller.set_inheritable(False)
    process_tree.adopt_orphans()
    warm_up()
    leaders: dict[int, str] = {}  # the folder of each run, by its leader's process
    while True:
        ready, _, _ = select.select([caller], [], [], GLANCE if leaders else None)
        clear_up(leaders)
        if ready and not serve(caller, leaders):
            break
    deadline = time.monotonic() + PATIENCE
    while leaders and time.monotonic() < deadline:  # they have seen it too
        time.sleep(0.01)
        clear_up(leaders)
    process_tree.end_all(*leaders)
    for folder in leaders.values():
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # there is nothing else to clean up, and torch takes its time with it


def warm_up() -> None:
    """Import what ranks need, so that none has to."""
    with warming_up():
        import cloudpickle  # type: ignore[import-untyped]  # noqa: F401
        import torch.nn.parallel  # noqa: F401

        import multigpu.ranks.tracing  # noqa: F401


def serve(caller: socket.socket, leaders: dict[int, str]) -> bool:
    """Fork the leader of one run.  False when the caller is gone."""
    try:
        message, descriptors, _, _ = socket.recv_fds(caller, 1, 1)
    except OSError:
        return False
    if not message:
        return False
    import_costly(message[0])
    with socket.socket(fileno=descriptors[0]) as connection:
        folder = make_run_folder(os.environ[process_tree.MARK])
        pid = os.fork()
        if pid == 0:
            live(caller, connection, folder)
        leaders[pid] = folder
    return True


def clear_up(leaders: dict[int, str]) -> None:
    """Collect the leaders that have ended, and what one that was killed has left behind."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if pid in leaders:
                folder = leaders.pop(pid)
                if status:
                    end_orphans(leaders)
                shutil.rmtree(folder, ignore_errors=True)  # last: the caller looks at it


def end_orphans(leaders: dict[int, str]) -> None:
    """Kill the processes that came to us when their leader was killed."""
    for child in psutil.Process().children():
        if child.pid not in leaders:
            for process in [child, *child.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    process.kill()


def live(caller: socket.socket, connection: socket.socket, folder: str) -> None:
    """The life of a leader.  Called right after the fork."""
    try:
        os.setsid()
        caller.close()
        process_tree.adopt_orphans()
        enter_run_folder(folder)
        with contextlib.suppress(Closed, CallerGone):
            work(connection, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def work(connection: socket.socket, folder: str) -> None:
    """Run one job and report it.  Raises Closed or CallerGone when nobody waits for it."""
    header, payload = receive(connection)
    job = Job(**header)
    try:
        backend = choose_backend(job.world_size, asked=job.backend, gpus=count_gpus())
    except ValueError as error:
        return send(connection, {"phase": "refused", "text": str(error)})
    send(connection, {"phase": "begins", "backend": str(backend), "folder": folder})
    report, answers = run(job, payload, backend, folder, connection)
    send(connection, {"phase": "report", **report}, b"".join(answers))


def run(
    job: Job, payload: bytes, backend: Backend, folder: str, connection: socket.socket
) -> tuple[dict[str, Any], list[bytes]]:
    """Lead the ranks of one job."""

    def tell(rank: int, part: bytes) -> None:
        send(connection, {"phase": "output", "rank": rank}, part)

    return lead(
        job.world_size,
        Rank(job, backend.name, os.path.join(folder, "store"), payload),
        limits=UNLIMITED,
        caller=connection,
        watch=Watch(job.world_size, timeout=job.timeout),
        tell=tell,
    )


def count_gpus() -> int:
    """How many GPUs PyTorch can use, without touching them."""
    import torch

    return torch.cuda.device_count()


if __name__ == "__main__":
    main(int(sys.argv[1]))
