"""Makes a thread's wait for another thread visible in the trace.

A main thread that waits in ``thread.join()`` for a thread which itself waits for a message is as
stuck as that one.  Without these frames it would look like a thread that computes.
"""

import threading

from multigpu.ranks.recorder import Recorder


def record_joins(recorder: Recorder) -> None:
    """From now on ``Thread.join`` says when it begins and when it is over."""
    join = threading.Thread.join

    def recorded(thread: threading.Thread, timeout: float | None = None) -> None:
        if not thread.is_alive() or timeout is not None:  # it may go on by itself
            return join(thread, timeout)
        mine = threading.get_native_id()
        recorder.tell("joining", thread=mine, on=thread.native_id)
        try:
            return join(thread)
        finally:
            recorder.tell("joined", thread=mine)

    threading.Thread.join = recorded  # type: ignore[method-assign, assignment]
