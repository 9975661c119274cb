"""Reports what this rank does, as it does it: one frame before each call, one when it is over.

A frame is written before the call is made. So the last call that a rank was about to make is known
even if the rank is killed in the middle of it.

Threads are recorded, too. A thread that will communicate later has not reported anything yet.
Because its number is known, the supervisor can see that it waits for a set time or for another
process, so that it is not stuck. And a main thread that waits in ``thread.join()`` for a thread
which itself waits for a message is as stuck as that thread; without a frame it would look like a
thread that computes.
"""

from __future__ import annotations

import os
import threading
import time
from _thread import start_new_thread
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from multigpu.devices import threads
from multigpu.ranks.call_site import STARTED_AT, Origin, origin
from multigpu.ranks.calls import MESSAGE_OPS
from multigpu.ranks.errors import describe_exception
from multigpu.ranks.frames import Write

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Group:
    """A process group, as its records name it."""

    name: str
    members: tuple[int, ...]  # global ranks, in the order of the group


@dataclass
class Recorder:
    """Turns calls into frames.  ``write`` takes one frame; any thread may call."""

    write: Write
    dropped: SimpleQueue[Any] | None = None  # messages without a wait, if any
    # Futures of async calls: the number of the call, and whether it is over.
    futures: WeakKeyDictionary[Any, tuple[int, Callable[[], bool]]] = field(
        default_factory=WeakKeyDictionary
    )
    last_failure: tuple[int, str] | None = None  # the call, and the text of its error
    threads: Any = None  # keeps the record of threads going
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ids: int = 0
    _collectives: Counter[str] = field(default_factory=Counter)  # so many so far, by group

    def begin(
        self,
        op: str,
        group: Group,
        tensors: Sequence[torch.Tensor],
        *,
        origin: Origin,
        is_async: bool,
        **details: Any,
    ) -> int:
        """Report that a call begins; return its number. ``tensors`` are this rank's inputs.

        ``details`` are more fields of a `Call`; ranks among them are global.
        A call that is not async blocks from here on.
        """
        size = [tensor.numel() for tensor in tensors]
        frame = {
            "phase": "call",
            "op": op,
            "via": origin.via or op,
            "group": group.name,
            "members": group.members,
            "shapes": [list(tensor.shape) for tensor in tensors],
            "dtype": str(tensors[0].dtype).removeprefix("torch.") if tensors else "",
            "numel": sum(size),
            "bytes": sum(n * t.element_size() for n, t in zip(size, tensors, strict=True)),
            "is_async": is_async,
            "thread": threading.get_native_id(),
            "file": origin.file,
            "line": origin.line,
            "function": origin.function,
            **details,
        }
        with self._lock:
            number = self._ids
            self._ids += 1
            if op not in MESSAGE_OPS:
                frame["nth"] = self._collectives[group.name]
                self._collectives[group.name] += 1
            self.write({**frame, "id": number, "time": time.monotonic()})
        return number

    def tell(self, phase: str, **details: Any) -> None:
        with self._lock:
            self.write({"phase": phase, **details, "time": time.monotonic()})

    def waits(self, number: int, *, limit: float | None = None) -> None:
        """This thread waits for call ``number``, for ``limit`` seconds at most."""
        self.tell("wait", id=number, thread=threading.get_native_id(), limit=limit)

    @contextmanager
    def failing(self, number: int) -> Iterator[None]:
        """Around the part of call ``number`` that may raise: an error in it is reported."""
        try:
            yield
        except Exception as error:
            self.failed(number, error)
            raise

    def keep(self, message: Any) -> None:
        """Keep a message without a wait until it is over: gloo would lose it otherwise.

        Gloo reports the end only to a waiting thread; so a thread waits. `record_threads` does not
        see this thread, because nothing else can come from it.
        """
        if self.dropped is None:
            self.dropped = SimpleQueue()
            start_new_thread(self._wait_for_dropped, (self.dropped,))
        self.dropped.put(message)

    @staticmethod
    def _wait_for_dropped(messages: SimpleQueue[Any]) -> None:
        while True:
            with suppress(RuntimeError):  # whatever it is, the program does not want to know
                messages.get().wait()

    def failed(self, number: int, error: Exception) -> None:
        self.last_failure = number, str(error)[:500]
        self.tell("failed", id=number, text=self.last_failure[1])

    def used(self, number: int) -> None:
        """The result of call ``number`` is taken before it is waited for."""
        where = origin()
        self.tell("used", id=number, file=where.file, line=where.line, function=where.function)

    def done(self, number: int, *, changed: bool = False, source: int | None = None) -> None:
        """The result of call ``number`` is visible to this rank.

        ``source`` is the global rank that a message came from, if any rank could send it.
        """
        self.tell("done", id=number, changed=changed, source=source)


class Current:
    """The recorder of this process, if it is a rank that is traced."""

    recorder: Recorder | None = None


def inside(error: BaseException) -> int | None:
    """The number of the traced call that raised ``error``, if one did."""
    if Current.recorder is None or Current.recorder.last_failure is None:
        return None
    number, text = Current.recorder.last_failure
    return number if str(error).startswith(text) else None


@contextmanager
def span(label: str) -> Iterator[None]:
    """Name this rank's work during the block; timelines show it as a solid bar.

    Outside of a traced rank it does nothing, so that the same code runs under torchrun.
    """
    start = time.monotonic()
    try:
        yield
    finally:
        end_span(label, start)


def end_span(label: str, start: float) -> None:
    """A span that began at ``start``, by the clock of ``time.monotonic()``, ends now."""
    if Current.recorder is not None:
        thread, end = threading.get_native_id(), time.monotonic()
        Current.recorder.tell("span", label=label, start=start, end=end, thread=thread)


# Threads of these modules wait with a time limit, over and over, and never communicate.
NEVER_COMMUNICATE = (
    *("multiprocessing.queues", "multiprocessing.resource_sharer"),
    *("torch.utils.data.", "tqdm.", "tensorboard."),
)


def record_threads(recorder: Recorder) -> None:
    """From now on threads report their start, end, joins and exceptions."""
    start, join, hook = threading.Thread.start, threading.Thread.join, threading.excepthook
    own = os.getpid()

    def recorded_start(thread: threading.Thread) -> None:
        setattr(thread, STARTED_AT, origin())
        start(thread)

    def recorded_join(thread: threading.Thread, timeout: float | None = None) -> None:
        if not thread.is_alive() or timeout is not None:  # it may continue by itself
            return join(thread, timeout)
        mine = threading.get_native_id()
        recorder.tell("joining", thread=mine, on=thread.native_id)
        try:
            return join(thread)
        finally:
            recorder.tell("joined", thread=mine)

    @contextmanager
    def recorded_life(thread: threading.Thread) -> Iterator[None]:
        work: Any = getattr(thread, "_target", None) or type(thread).run
        library = str(getattr(work, "__module__", "")).startswith(NEVER_COMMUNICATE)
        if library or os.getpid() != own:  # a forked child may hold our lock
            yield
            return
        mine = threading.get_native_id()
        recorder.tell("thread_started", thread=mine)
        try:
            yield
        finally:
            recorder.tell("thread_ended", thread=mine)

    def recorded_error(args: threading.ExceptHookArgs) -> None:
        error: Any = args.exc_value
        quiet = error is None or isinstance(error, SystemExit)  # it ends a thread without a word
        if not quiet and os.getpid() == own:
            recorder.tell("thread_raised", **describe_exception(error))
        hook(args)

    threading.Thread.start = recorded_start  # type: ignore[method-assign, assignment]
    threading.Thread.join = recorded_join  # type: ignore[method-assign, assignment]
    threading.excepthook = recorded_error
    recorder.threads = threads.around_new_threads(recorded_life)
    recorder.threads.__enter__()  # to the end of this process
