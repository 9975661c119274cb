"""Hooks around every new thread; only this module patches Python's threads.

Virtual GPUs switch their interception on there, ranks record that a thread begins and ends, and
a memory meter enters a mode, because PyTorch's modes belong to one thread.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

Around = Callable[[threading.Thread], AbstractContextManager[Any]]

_around: list[Around] = []
_bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]


@contextmanager
def around_new_threads(around: Around) -> Iterator[None]:
    """Run each thread that starts in the block in the context ``around(thread)``."""
    threading.Thread._bootstrap_inner = _run_inside  # type: ignore[attr-defined]
    _around.append(around)
    try:
        yield
    finally:
        _around.remove(around)
        if not _around:
            threading.Thread._bootstrap_inner = _bootstrap  # type: ignore[attr-defined]


def _run_inside(thread: threading.Thread) -> None:
    """Stands in for `Thread._bootstrap_inner`."""
    with ExitStack() as stack:
        for around in tuple(_around):
            stack.enter_context(around(thread))
        _bootstrap(thread)
