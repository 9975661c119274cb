"""Says what this rank does, as it does it: one frame before each call, one when it is over.

A frame is written before the call is made. So the last thing that a rank was about to do is known
even when the rank is killed in the middle of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from multigpu.ranks.origin import Origin

if TYPE_CHECKING:
    import torch

Say = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Group:
    """A process group, as its records name it."""

    name: str
    members: tuple[int, ...]  # global ranks, in the order of the group


@dataclass
class Recorder:
    """Turns calls into frames.  ``say`` takes one frame; any thread may call."""

    say: Say
    dropped: list[Any] = field(default_factory=list)  # handles that nobody waited for
    # Futures of async calls: the number of the call, and whether it is over.
    futures: WeakKeyDictionary[Any, tuple[int, Callable[[], bool]]] = field(
        default_factory=WeakKeyDictionary
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ids: int = 0
    _collectives: dict[str, int] = field(default_factory=dict)  # so many so far, by group

    def begin(
        self,
        op: str,
        group: Group,
        tensors: Sequence[torch.Tensor],
        *,
        origin: Origin,
        is_async: bool,
        reduce: str | None = None,
        root: int | None = None,
        peer: int | None = None,
        tag: int = 0,
        wanted: Sequence[int] = (),
    ) -> int:
        """Say that a call begins; return its number.  ``tensors`` are what this rank brings.

        ``root`` and ``peer`` are global ranks, ``wanted`` those that a new group shall have.
        A call that is not async blocks from here on.
        """
        size = [tensor.numel() for tensor in tensors]
        frame = {
            "phase": "call",
            "op": op,
            "via": origin.via or op,
            "group": group.name,
            "members": list(group.members),
            "nth": None,
            "shapes": [list(tensor.shape) for tensor in tensors],
            "dtype": str(tensors[0].dtype).removeprefix("torch.") if tensors else "",
            "numel": sum(size),
            "bytes": sum(n * t.element_size() for n, t in zip(size, tensors, strict=True)),
            "reduce": reduce,
            "root": root,
            "peer": peer,
            "tag": tag,
            "wanted": list(wanted),
            "is_async": is_async,
            "thread": threading.get_native_id(),
            "file": origin.file,
            "line": origin.line,
            "function": origin.function,
        }
        with self._lock:
            number = self._ids
            self._ids += 1
            if op not in ("send", "recv"):
                frame["nth"] = self._collectives.get(group.name, 0)
                self._collectives[group.name] = self._collectives.get(group.name, 0) + 1
            self.say({**frame, "id": number, "time": time.monotonic()})
        return number

    def tell(self, phase: str, **details: Any) -> None:
        """Say anything else, with the time."""
        with self._lock:
            self.say({"phase": phase, **details, "time": time.monotonic()})

    @contextmanager
    def waiting(self, number: int) -> Iterator[None]:
        """Around the part of call ``number`` that blocks; an error in it is said, too."""
        self.tell("wait", id=number, thread=threading.get_native_id())
        try:
            yield
        except Exception as error:
            self.tell("failed", id=number, text=str(error)[:500])
            raise

    def done(self, number: int, *, changed: bool = False, source: int | None = None) -> None:
        """The result of call ``number`` is there for this rank to see.

        ``source`` is the global rank that a message came from, where any could send it.
        """
        self.tell("done", id=number, changed=changed, source=source)


class Current:
    """The recorder of this process, if it is a rank that is traced."""

    recorder: Recorder | None = None
