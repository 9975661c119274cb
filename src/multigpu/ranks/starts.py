"""Makes the threads that a program starts visible: where each was started, and how it ended.

A thread that will communicate later has said nothing yet. Only because its number is known, the
watch can see that it waits for a set time or for another process, so that nobody is stuck.
"""

import os
import threading
from typing import Any

from multigpu.ranks.errors import describe_exception
from multigpu.ranks.origin import STARTED_AT, origin
from multigpu.ranks.recorder import Recorder

# Threads of these modules wait with a time limit, over and over, and never communicate.
NEVER_COMMUNICATE = (
    *("multiprocessing.queues", "multiprocessing.resource_sharer"),
    *("torch.utils.data.", "tqdm.", "tensorboard."),
)


def record_starts(recorder: Recorder) -> None:
    """From now on a thread says when it begins, when it is over and what nobody caught in it."""
    start, bootstrap = threading.Thread.start, threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    hook, own = threading.excepthook, os.getpid()

    def recorded_start(thread: threading.Thread) -> None:
        setattr(thread, STARTED_AT, origin())
        start(thread)

    def recorded_life(thread: threading.Thread) -> None:
        if os.getpid() != own or never_communicates(thread):  # a forked child may hold our lock
            return bootstrap(thread)  # type: ignore[no-any-return]
        mine = threading.get_native_id()
        recorder.tell("thread_started", thread=mine)
        try:
            bootstrap(thread)
        finally:
            recorder.tell("thread_ended", thread=mine)

    def recorded_error(args: threading.ExceptHookArgs) -> None:
        error: Any = args.exc_value
        quiet = error is None or isinstance(error, SystemExit)  # it ends a thread without a word
        if not quiet and os.getpid() == own:
            recorder.tell("thread_raised", **describe_exception(error))
        hook(args)

    threading.Thread.start = recorded_start  # type: ignore[method-assign, assignment]
    threading.Thread._bootstrap_inner = recorded_life  # type: ignore[attr-defined]
    threading.excepthook = recorded_error


def never_communicates(thread: threading.Thread) -> bool:
    """Whether it is one of a library's own, which only serves the library."""
    work: Any = getattr(thread, "_target", None) or type(thread).run
    return str(getattr(work, "__module__", "")).startswith(NEVER_COMMUNICATE)
