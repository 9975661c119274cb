"""Imports torch once, then forks one supervisor per run.  The supervisor forks the ranks.

    python -m multigpu.ranks.forkserver FD

``FD`` is a socket to the caller.  Through it comes one more socket for each run, which is that
run's own way to the caller: so many runs go on side by side.  The byte that comes with it says what
the caller has imported, or ranks so far (``warming.COSTLY``): now the server does it for them.
It lives as long as the other end of ``FD`` is open, touches no GPU and has one thread: threads and
CUDA survive no fork.

The standard library's forkserver (``multiprocessing.get_context("forkserver")``) would start ranks
as quickly, but when the caller is killed its processes live on, nobody collects what they have
started, and each imports the caller's ``__main__``. There is one for a whole program, so that we
would decide what the program's own pools preload. And it takes no orders between two forks: to
import what the last ranks had to import, to freeze the garbage collection, to use large pages.
"""

import contextlib
import os
import select
import shutil
import socket
import sys
import time

import psutil

from multigpu.ranks import process_tree
from multigpu.ranks.backend import choose_backend
from multigpu.ranks.frames import Closed, receive, send
from multigpu.ranks.limits import UNLIMITED
from multigpu.ranks.proof import Watch
from multigpu.ranks.rank import Job, Rank
from multigpu.ranks.server import INSIDE, make_run_folder
from multigpu.ranks.supervisor import CallerGone, supervise
from multigpu.ranks.warming import import_costly, warming_up

GLANCE = 0.2  # seconds between two looks for supervisors that have ended
PATIENCE = 20.0  # seconds for supervisors to end their runs once the caller is gone


def main(descriptor: int) -> None:
    """Serve until the caller is gone."""
    caller = socket.socket(fileno=descriptor)
    caller.set_inheritable(False)
    process_tree.adopt_orphans()
    with warming_up():  # import what ranks need, so that none has to
        import cloudpickle  # type: ignore[import-untyped]  # noqa: F401
        import torch.nn.parallel  # noqa: F401

        import multigpu.ranks.tracing  # noqa: F401
    runs = Runs()
    while True:
        ready, _, _ = select.select([caller], [], [], GLANCE if runs.folders else None)
        runs.collect()
        if ready and not runs.start(caller):
            break
    runs.end()
    os._exit(0)  # there is nothing else to clean up, and torch takes its time with it


class Runs:
    """The runs that go on: the folder of each, by the process of its supervisor."""

    def __init__(self) -> None:
        self.folders: dict[int, str] = {}

    def start(self, caller: socket.socket) -> bool:
        """Fork the supervisor of one run.  False when the caller is gone."""
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
                try:
                    os.setsid()
                    caller.close()
                    process_tree.adopt_orphans()
                    os.environ[INSIDE] = folder
                    with contextlib.suppress(Closed, CallerGone):
                        run(connection, folder)
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                    os._exit(0)
            self.folders[pid] = folder
        return True

    def collect(self) -> None:
        """Collect the supervisors that have ended, and what one that was killed has left behind."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid in self.folders:
                    folder = self.folders.pop(pid)
                    if status:
                        self._end_orphans()
                    shutil.rmtree(folder, ignore_errors=True)  # last: the caller looks at it

    def _end_orphans(self) -> None:
        """Kill the processes that came to us when their supervisor was killed."""
        for child in psutil.Process().children():
            if child.pid not in self.folders:
                for process in [child, *child.children(recursive=True)]:
                    with contextlib.suppress(psutil.Error):
                        process.kill()

    def end(self) -> None:
        """Give supervisors time to end their runs, for they have seen it too; then end the rest."""
        deadline = time.monotonic() + PATIENCE
        while self.folders and time.monotonic() < deadline:
            time.sleep(0.01)
            self.collect()
        process_tree.end_all(*self.folders)
        for folder in self.folders.values():
            shutil.rmtree(folder, ignore_errors=True)


def run(connection: socket.socket, folder: str) -> None:
    """Run one job and report it.  Raises Closed or CallerGone when nobody waits for it."""
    import torch

    def tell(rank: int, part: bytes) -> None:
        send(connection, {"phase": "output", "rank": rank}, part)

    header, payload = receive(connection)
    job = Job(**header)
    try:
        gpus = torch.cuda.device_count()
        backend = choose_backend(job.world_size, asked=job.backend, gpus=gpus)
    except ValueError as error:
        return send(connection, {"phase": "refused", "text": str(error)})
    send(connection, {"phase": "begins", "backend": str(backend), "folder": folder})
    report, answers = supervise(
        job.world_size,
        Rank(job, backend.name, os.path.join(folder, "store"), payload),
        limits=UNLIMITED,
        caller=connection,
        watch=Watch(job.world_size, timeout=job.timeout),
        tell=tell,
    )
    send(connection, {"phase": "report", **report}, b"".join(answers))


if __name__ == "__main__":
    main(int(sys.argv[1]))
