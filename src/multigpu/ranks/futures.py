"""Makes the wait for the future of an async call visible, and for what follows from it.

The futures stay those that C++ made, so that a communication hook can hand them back to it; what
changes are the methods ``wait`` and ``then`` of their class.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from multigpu.ranks.recorder import Recorder


def record_futures(recorder: Recorder) -> None:
    """From now on who waits for a future of ``recorder.futures`` says so."""
    kind: Any = torch._C.Future
    wait, then, wait_all = kind.wait, kind.then, torch.futures.wait_all
    known = recorder.futures

    def seen_wait(future: Any) -> Any:
        number, is_over = known.get(future, (0, _always))
        if is_over():
            return wait(future)
        recorder.tell("wait", id=number, thread=threading.get_native_id())
        try:
            return wait(future)
        except Exception as error:
            if not is_over():  # else the call went well, and a callback did not
                recorder.tell("failed", id=number, text=str(error)[:500])
            raise

    def seen_then(future: Any, callback: Callable[[Any], Any]) -> Any:
        following = then(future, callback)
        if future in known:
            known[following] = known[future]
        return following

    def seen_wait_all(futures: Sequence[Any]) -> list[Any]:
        for future in futures:
            if future in known:
                future.wait()
        return wait_all(list(futures))

    kind.wait, kind.then, torch.futures.wait_all = seen_wait, seen_then, seen_wait_all


def _always() -> bool:
    return True
