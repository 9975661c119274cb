"""Puts a rank's own work into its trace: ``with span("backward"): loss.backward()``."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from multigpu.ranks.recorder import Current


@contextmanager
def span(label: str) -> Iterator[None]:
    """Name what this rank computes during the block; figures of time show it as a solid bar.

    Outside of a traced rank it does nothing, so that the same code runs under torchrun.
    """
    start = time.monotonic()
    try:
        yield
    finally:
        if Current.recorder is not None:
            Current.recorder.tell(
                "span",
                label=label,
                start=start,
                end=time.monotonic(),
                thread=threading.get_native_id(),
            )
