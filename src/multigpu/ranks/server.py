"""The process server: it imports torch once, then forks the processes of one run after another.

    with server.run(job) as receive:
        phase, *values = receive()      # what the server sends, until the run is over

``run_ranks`` has one for the whole program (`RANKS`), a session of checks has one with stand-ins
for the compiler. A server has one thread and does not touch a GPU, because threads and CUDA do not
survive a fork. It supervises each run itself (supervisor.py). Runs that go on at the same time, in
several threads of the program, have a process each.

Connections, and what they send, are those of ``multiprocessing``. Its forkserver would start ranks
as quickly, but it takes no commands between two forks: to import what the last ranks had to import,
to freeze the garbage collection, to use large pages. There is one for a whole program, so this
package would decide what the program's own pools preload. And when its caller is killed, its
processes continue, and nothing ends the processes that they have started.
"""

import atexit
import contextlib
import importlib
import itertools
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from glob import escape, glob
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from types import ModuleType
from typing import Any, Self

from multigpu.ranks.process_tree import ENDING, MARK, RUN, adopt_orphans, end_marked
from multigpu.ranks.warming import import_costly, warming_up

GOODBYE = ENDING + 5  # seconds for a server to end what it runs


# --- the caller's side ---------------------------------------------------------------------------


class ServerDied(Exception):
    """The server was killed during a run; the text is the end of its error output."""


class Server:
    """The server of a program: started at the first run, and again when it was killed.

    It imports ``module``, which has two functions: ``warm_up()`` imports what all runs need,
    ``serve(job, connection, folder)`` is called for each run. The folder is the run's own. Every
    process that a server starts has a mark in its environment, by which it can be found when its
    parents were killed; names of run folders begin with the mark.
    """

    def __init__(self, module: str) -> None:
        self.module = module
        self.processes: list[ServerProcess] = []  # as many as there were runs at the same time
        self._lock = threading.Lock()
        self._learned: set[str] = set()

    def start(self) -> "ServerProcess":
        """A process without a run, which is new if there is no other."""
        for process in list(self.processes):
            if process.caller != os.getpid():  # it is that of our parent
                process.connection.close()
            if process.caller != os.getpid() or process.popen.poll() is not None:
                self.processes.remove(process)
        free = [process for process in self.processes if not process.is_busy]
        if not free:
            free.append(ServerProcess(self.module))
            self.processes += free
        return free[0]

    @contextlib.contextmanager
    def run(
        self, job: object, *, wanted: Iterable[str] = (), wait: bool = True
    ) -> Iterator[Callable[[], Any]]:
        """Give the server this job; ``receive()`` is its next message.

        It first imports those of ``warming.COSTLY`` that are ``wanted``. However the block ends,
        nothing of the run is left after it; with ``wait=False`` the server may still clean up.
        ``receive`` raises ServerDied, and RuntimeError for an exception in the server's own code.
        """

        def receive() -> Any:
            with while_connected():
                message = connection.recv()
                if message[0] == "fault":
                    raise RuntimeError(f"the supervisor of the run failed: {message[1]}")
                return message
            process.clear_up(folder)
            raise ServerDied(process.error_output())

        with self._lock:
            process = self.start()
            process.is_busy = True
        connection, theirs = Pipe()
        folder, reported = f"{process.mark}{next(process.runs)}-", False
        with connection:
            try:
                with while_connected():  # otherwise receive() reports it
                    with theirs:
                        process.take(theirs)
                    connection.send(({*wanted, *self._learned}, folder))
                    connection.send(job)
                yield receive
                reported = True
            finally:  # let the server end what still runs, and wait until it has
                try:
                    with while_connected():
                        shut_down(connection, socket.SHUT_WR)
                        while (wait or not reported) and connection.poll(GOODBYE):
                            if not os.read(connection.fileno(), 1 << 20):
                                break
                finally:  # after a second Ctrl-C, too
                    process.is_busy = False

    def learn(self, costly: Iterable[str]) -> None:
        """Ranks have imported this; the server does so before it forks the next ones."""
        self._learned.update(costly)

    def close(self) -> None:
        """Stop it. The next run starts another one."""
        with self._lock:
            while self.processes:
                process = self.processes.pop()
                if process.caller == os.getpid():
                    process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ServerProcess:
    """One server process, as its caller sees it. ``start`` starts it as ``Popen`` does."""

    def __init__(self, module: str, start: Callable[..., Any] = subprocess.Popen) -> None:
        self.caller = os.getpid()
        self.connection, theirs = Pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as we do)
        outer = os.environ.get(MARK) or tempfile.gettempdir()  # the folder of a run that we are in
        self.mark = os.path.join(outer, f"{RUN}{secrets.token_hex(8)}-")
        self.runs = itertools.count()  # a number for each folder
        self._asked = False
        self.is_busy = False
        environment = os.environ | {
            MARK: self.mark,
            "OMP_NUM_THREADS": "1",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # counting GPUs must not start CUDA
            "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",  # macOS: forking is what it does
        }
        with theirs:
            self.popen = start(
                [sys.executable, "-P", "-m", "multigpu.ranks.server", str(theirs.fileno()), module],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C reaches only the caller, which ends the rest
                env=environment,
            )

    def take(self, connection: Connection) -> None:
        """Have the server read there what a run needs.

        Nothing else is sent on the server's own connection, so an interruption cannot corrupt it.
        """
        self._asked = True
        send_handle(self.connection, connection.fileno(), self.popen.pid)

    def error_output(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-2000:]

    def clear_up(self, folder: str) -> None:
        """Wait until it has ended what is left of a run; if it is dead, do that here.

        Ranks have the server's mark and end with it. Processes that they start have the run's mark.
        """
        deadline = time.monotonic() + GOODBYE
        while os.path.exists(folder) and self.popen.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if self.popen.poll() is not None:
            self._remove_all()

    def _remove_all(self) -> None:
        end_marked(self.mark)
        for folder in glob(f"{escape(self.mark)}*"):
            remove(folder)

    def stop(self) -> None:
        with while_connected():
            shut_down(self.connection, socket.SHUT_RDWR)  # a forked child may have a copy of it
        self.connection.close()
        if not self._asked:  # it imports torch still, and has started nothing
            self.popen.kill()
        try:
            self.popen.wait(timeout=GOODBYE)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            self._remove_all()
        self._errors.close()


RANKS = Server("multigpu.ranks.rank")  # that of run_ranks
atexit.register(RANKS.close)


@contextlib.contextmanager
def while_connected() -> Iterator[None]:
    """Continue after the block when the process at the other end of the connection is gone."""
    try:
        yield
    except TimeoutError:  # no connection raises it: it is the caller's own alarm
        raise
    except (EOFError, OSError):
        pass


def shut_down(connection: Connection, direction: int) -> None:
    """Let the other end see the end of this connection, even if other processes have copies."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(direction)


def remove(folder: str) -> None:
    """Remove a folder with all that a program may have put into it."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.exists(folder):  # folders in folders without end are beyond Python's own way
        subprocess.run(["rm", "-rf", folder], stderr=subprocess.DEVNULL, check=False)


# --- the server's process ------------------------------------------------------------------------


def main(descriptor: int, name: str) -> None:
    """Serve until the caller is gone."""
    os.set_inheritable(descriptor, False)
    caller = Connection(descriptor)
    adopt_orphans()
    module = importlib.import_module(name)
    with warming_up():
        module.warm_up()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            with Connection(recv_handle(caller)) as connection:
                serve(module, connection)
    os._exit(0)  # there is nothing else to clean up, and torch takes its time with it


def serve(module: ModuleType, connection: Connection) -> None:
    """One run, in a folder of its own.  A fault of this package is reported to the caller."""
    try:
        wanted, folder = connection.recv()
        import_costly(wanted)
        os.environ[MARK] = folder
        try:
            os.makedirs(folder, mode=0o700)
            module.serve(connection.recv(), connection, folder)
        finally:
            remove(folder)
    except (EOFError, ConnectionError):
        pass  # the caller is gone
    except Exception:
        with contextlib.suppress(ConnectionError):
            connection.send(("fault", traceback.format_exc()))
    except BaseException:  # a signal, most often
        traceback.print_exc()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
