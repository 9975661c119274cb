"""Leave no process behind, however a command ends."""

import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

import psutil

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def leaving_no_process() -> Iterator[None]:
    """End what was started inside and still runs: kernels, terminals, a stopped build.

    A signal that ends a process at once would leave them, so here it is a ``KeyboardInterrupt``.
    """
    before = psutil.Process().children(recursive=True)
    usual = {ending: signal.signal(ending, signal.default_int_handler) for ending in ENDINGS}
    try:
        yield
    finally:
        for ending in ENDINGS:
            signal.signal(ending, signal.SIG_IGN)  # an impatient second Ctrl-C
        end_all_but(before)
        for ending, handler in usual.items():
            signal.signal(ending, handler)


def end_all_but(spared: Collection[psutil.Process]) -> None:
    """Kill every process under this one that is not ``spared``.

    They are stopped before any is killed: a parent would answer the loss of a child with a new one
    (and a build that executes notebooks survives the gentle signals, it takes them for the cell).
    """
    stopped: list[psutil.Process] = []
    while found := [
        process
        for process in psutil.Process().children(recursive=True)
        if process not in stopped and process not in spared
    ]:
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        stopped += found
    for process in stopped:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(stopped, timeout=5)
