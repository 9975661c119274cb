"""Frames out of a pipe that gives them in pieces, with other bytes between them."""

import os
import signal
import socket
import threading

import pytest

from multigpu.ranks import child_process
from multigpu.ranks.frames import Closed, FrameReader, pack, receive, send
from multigpu.ranks.limits import UNLIMITED

TOKEN = b"0123456789abcdef"
FRAMES = [({"phase": "one"}, b""), ({"phase": "two"}, b"blob" * 50), ({"phase": "three"}, TOKEN)]
STREAM = b"".join(TOKEN + pack(*frame) for frame in FRAMES)


def read(parts, *, keep=10_000):
    reader = FrameReader(TOKEN, keep=keep)
    frames = [frame for part in parts for frame in reader.add(part)]
    reader.close()
    return frames, reader.foreign


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


def test_each_frame_comes_as_soon_as_it_is_whole():
    reader = FrameReader(TOKEN, keep=10_000)
    seen = [bool(reader.add(bytes([byte]))) for byte in TOKEN + pack({"phase": "one"})]
    assert seen == [False] * (len(seen) - 1) + [True]


def test_of_a_process_that_communicates_for_long_the_newest_calls_are_kept(monkeypatch):
    monkeypatch.setattr(child_process, "KEPT_FRAMES", 100)
    child = child_process.ChildProcess(0, None, token=TOKEN, limits=UNLIMITED)
    child.add("frames", TOKEN + pack({"phase": "started"}))
    for number in range(1000):
        child.add("frames", TOKEN + pack({"phase": "call", "id": number}))
        assert len(child.said) <= 100
    assert child.said[0] == {"phase": "started"}
    assert [frame["id"] for frame in child.said[-40:]] == list(range(960, 1000))


def test_random_bytes_are_no_frames():
    assert read([os.urandom(5000)]) == ([], 5000)


@pytest.fixture
def sockets():
    pair = socket.socketpair()
    yield pair
    for end in pair:
        end.close()


@pytest.mark.parametrize("error", [TimeoutError("mine"), FileNotFoundError(2, "mine")])
@pytest.mark.parametrize(
    "act", [receive, lambda connection: send(connection, {}, bytes(10_000_000))]
)
def test_what_a_signal_handler_raises_comes_out_as_it_is(sockets, error, act):
    def alarm(*_):
        raise error

    before = signal.signal(signal.SIGUSR2, alarm)
    main = threading.get_ident()
    timer = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGUSR2))
    timer.start()
    try:
        with pytest.raises(type(error)) as caught:
            act(sockets[0])
    finally:
        timer.join()
        signal.signal(signal.SIGUSR2, before)
    assert caught.value is error


def test_a_closed_socket_is_closed_for_both_directions(sockets):
    sockets[1].close()
    with pytest.raises(Closed):
        receive(sockets[0])
    with pytest.raises(Closed):
        send(sockets[0], {}, b"more")
    sockets[0].close()
    with pytest.raises(Closed):
        receive(sockets[0])
