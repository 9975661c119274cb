"""Frames out of a pipe that gives them in pieces, with other bytes between them."""

import subprocess
import sys

import pytest

from multigpu.ranks.frames import FrameReader, pack

TOKEN = b"0123456789abcdef"
FRAMES = [({"phase": "one"}, b""), ({"phase": "two"}, b"blob" * 50), ({"phase": "three"}, TOKEN)]
STREAM = b"".join(TOKEN + pack(*frame) for frame in FRAMES)


def read(parts, *, keep=10_000):
    reader = FrameReader(TOKEN, keep=keep)
    frames = [frame for part in parts for frame in reader.add(part)]
    return frames, reader.foreign()


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 100, 10_000])
def test_frames_are_found_however_the_stream_is_cut(size):
    parts = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert read(parts) == (FRAMES, 0)


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_other_bytes_are_counted_and_the_frames_between_them_found(size):
    first = len(TOKEN + pack(*FRAMES[0]))
    stream = b"pass" + STREAM[:first] + b"012345" + STREAM[first:] + b"x" * 20
    parts = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert read(parts) == (FRAMES, 4 + 6 + 20)


def test_a_last_frame_that_breaks_off_is_neither_a_frame_nor_foreign():
    for end in range(len(STREAM) - 40, len(STREAM)):
        assert read([STREAM[:end]]) == (FRAMES[:2], 0)


def test_beyond_what_is_kept_nothing_is_taken_in():
    assert read([STREAM], keep=100)[0] == FRAMES[:1]


LONG_TALK = """
from multiprocessing import Pipe
from multigpu.ranks import process_tree, state, supervisor
from multigpu.ranks.proof import Watch
from multigpu.ranks.resource_monitor import UNLIMITED

def body(number, write):
    call = {"op": "barrier", "via": "barrier", "group": "0", "members": [0], "nth": 0}
    where = {"thread": 1, "file": "train.py", "line": 5, "function": "train", "time": 0.0}
    for number in range(1000):
        frame = {"phase": "call", **call, **where, "id": number}
        write(frame, bytes(20_000))  # 50 of them come at once
        write({"phase": "done", "id": number, "time": 0.0})
        write({"phase": "thread_started", "thread": number})

state.KEPT = 100
process_tree.adopt_orphans()
ours, theirs = Pipe()
watch = Watch(1, timeout=None)
report = supervisor.Supervisor(1, body, limits=UNLIMITED, caller=ours, watch=watch).run()
(member,) = report["members"]
phases = [frame["phase"] for frame in member["said"]]
assert phases == ["started", "ending", "holding", "ended"], phases  # the rest is for the watch
assert [call.id for call in report["trace"].calls] == list(range(900, 1000))
"""


def test_of_a_process_that_communicates_for_long_the_newest_calls_are_kept():
    """In a process of its own: who supervises has adopted orphans, and collects every child."""
    subprocess.run([sys.executable, "-c", LONG_TALK], check=True, timeout=60)
