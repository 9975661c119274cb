"""Which failure is the cause, and which only follow; and a run that says nothing any more."""

import re
import signal

import pytest
from said import numbers_in

FOLLOW_UPS = [
    "Connection closed by peer [127.0.0.1]:4711",
    "[../gloo/transport/tcp/pair.cc:547] Connection reset by peer",
    "Read error [127.0.0.1]:1: Connection reset by peer",
    "Application timeout caused pair closure",
    "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting "
    "1800000ms for recv operation to complete",
]


def test_an_exception_is_told_with_its_rank_and_line(play):
    run = play(3)
    run.call(0, "all_reduce")
    run.raised(1, "ValueError", "no rows left", line=33)
    found = run.look()
    assert (found.kind, found.ranks) == ("exception", (1,))
    first, where = found.message.splitlines()
    assert all(part in first for part in ("rank 1", "ValueError", "no rows left"))
    assert re.search(r"train\.py:33\b.*\btrain$", where)
    assert found.details["raised"]["1"]["type"] == "ValueError"


def test_ranks_that_raise_the_same_are_named_together(play):
    run = play(3)
    for rank in (2, 0):
        run.raised(rank, "ValueError", f"rank {rank} has none")
    run.raised(1, "KeyError", "x")
    found = run.look()
    assert found.ranks == (0, 2)
    first = found.message.splitlines()[0]
    assert numbers_in(first) == [0, 2, 2]
    assert "ValueError: rank 2" in first  # what the earlier one said


@pytest.mark.parametrize("text", FOLLOW_UPS)
def test_errors_that_follow_a_death_are_folded_away(play, text):
    run = play(3)
    numbers = [run.call(rank, "all_reduce") for rank in run.world]
    run.fails(0, numbers[0], text)
    run.fails(2, numbers[2], text)
    assert run.look(0.5) is None  # the cause may still show itself
    run.watch.ended(1, -signal.SIGKILL)
    found = run.look()
    assert (found.kind, found.ranks) == ("exit", (1,))
    assert numbers_in(found.message) == [1, 10]
    assert all(part in found.message for part in ("SIGKILL", "all_reduce", "train.py:10"))
    assert "memory" in found.usually


def test_a_follow_up_that_was_wrapped_in_another_exception_is_still_one(play):
    run = play(2)
    number = run.call(0, "recv", peer=1)
    run.say(0, phase="failed", id=number, text=FOLLOW_UPS[0])
    run.raised(0, "TrainingError", "step 3 failed")
    run.watch.ended(1, 1)
    found = run.look()
    assert (found.kind, found.ranks) == ("exit", (1,))
    assert numbers_in(found.message) == [1, 1]
    assert "status 1" in found.message


def test_follow_ups_without_a_cause_are_shown_in_the_end(play):
    run = play(2)
    run.fails(0, run.call(0, "recv", peer=1), FOLLOW_UPS[4])
    began = run.now
    found = run.look(5.0)
    assert found.ranks == (0,)
    assert run.now - began > 0.9


def test_a_process_that_is_dying_is_waited_for_and_is_the_cause(play):
    run = play(2)
    run.fails(0, run.call(0, "recv", peer=1), FOLLOW_UPS[0])
    run.threads.ending.add(1)
    assert run.look(5.0) is None
    run.watch.ended(1, -signal.SIGKILL)
    assert (found := run.look()).ranks == (1,)
    assert found.kind == "exit"


def test_an_exception_that_came_before_a_death_is_the_cause(play):
    run = play(2)
    run.raised(0, "ValueError", "first")
    run.watch.ended(1, -signal.SIGABRT)
    assert run.look().kind == "exception"


def test_leaving_with_os_exit(play):
    run = play(2)
    run.call(0, "barrier")
    run.say(1, phase="left", status=0, where=["/course/train.py", 17, "main"])
    run.watch.ended(1, 0)
    found = run.look()
    assert (found.kind, found.ranks) == ("exit", (1,))
    assert numbers_in(found.message) == [1, 0, 17]
    assert all(part in found.message for part in ("os._exit(0)", "train.py:17"))


def test_ranks_that_left_alike_are_named_together_also_while_one_is_on_its_way_out(play):
    run = play(3)
    for rank in (2, 0):
        run.say(rank, phase="left", status=0, where=["/course/train.py", 17, "main"])
    run.watch.ended(2, 0)
    assert run.look(0.2).ranks == (0, 2)


def test_leaving_with_sys_exit(play):
    run = play(2)
    run.say(
        1,
        phase="raised",
        type="SystemExit",
        types=["SystemExit", "BaseException"],
        status="3",
        text="3",
        frames=[["/course/train.py", 17, "main"]],
    )
    found = run.look()
    assert (found.kind, found.ranks) == ("exit", (1,))
    assert numbers_in(found.message) == [1, 3, 17]
    assert all(part in found.message for part in ("sys.exit(3)", "train.py:17"))


def test_of_two_deaths_the_abort_in_a_call_is_the_follow_up(play):
    run = play(3)
    run.call(0, "barrier")
    run.watch.ended(0, -signal.SIGABRT)
    run.watch.ended(2, -signal.SIGSEGV)
    found = run.look()
    assert found.ranks == (2,)
    assert "SIGSEGV" in found.message


def test_silence_ends_at_the_timeout_and_blames_the_busy(play):
    run = play(3, timeout=5.0)
    run.call(0, "barrier")
    run.returned(2)
    began = run.now
    found = run.look(10.0)
    assert (found.kind, found.ranks) == ("no_progress", (1,))
    assert 5.0 <= run.now - began <= 5.5
    silent, waiting, left = found.message.splitlines()
    assert numbers_in(silent) == [1, 5]
    assert "5 s" in silent
    assert numbers_in(waiting) == [0, 1, 10]
    assert all(part in waiting for part in ("barrier", "train.py:10"))
    assert numbers_in(left) == [2]
    assert "returned" in left
    stack = 'File "train.py", line 3 in f'
    who, shown = found.with_stacks({1: stack}).message.splitlines()[3:]
    assert numbers_in(who) == [1]
    assert shown.strip() == stack


def test_silence_of_ranks_that_all_wait(play):
    run = play(2, timeout=5.0)
    for rank in run.world:
        run.call(rank, "all_reduce")
    found = run.look(10.0)
    assert found.ranks == (0, 1)
    waiting = found.message.splitlines()[1]
    assert numbers_in(waiting) == [0, 1, 1, 10]
    assert "all_reduce" in waiting
    assert "backend" in found.usually


def test_output_and_frames_are_progress(play):
    run = play(2, timeout=5.0)
    for _ in range(10):
        assert run.look(3.0) is None
        run.watch.note_progress()
    run.watch._timeout = None
    assert run.look(100.0) is None


def raised_in_a_thread(run, rank, kind, text, *, line=50):
    frames = [["/course/train.py", line, "load"]]
    run.say(rank, phase="thread_raised", type=kind, types=[kind], text=text, frames=frames)


def test_an_exception_in_a_thread_is_named_when_others_wait_for_ever(play):
    run = play(2)
    run.call(0, "barrier")
    raised_in_a_thread(run, 1, "ZeroDivisionError", "division by zero")
    assert run.look(0.4) is None  # it ends its thread, not the run
    run.returned(1)
    found = run.look()
    assert found.kind == "deadlock"
    first, headline, *_ = found.message.splitlines()
    assert numbers_in(first) == [1, 50]
    assert all(part in first for part in ("thread", "ZeroDivisionError", "train.py:50"))
    assert numbers_in(headline) == [1, 0]  # who returned, who waits
    assert all(word in found.usually for word in ("exception", "thread"))


def test_of_exceptions_in_a_thread_and_in_the_rank_the_earlier_one_comes_first(play):
    run = play(2)
    raised_in_a_thread(run, 1, "ZeroDivisionError", "division by zero")
    run.raised(0, "KeyError", "'x'")
    lines = run.look().message.splitlines()
    assert all(part in lines[0] for part in ("thread", "rank 1", "ZeroDivisionError"))
    assert all(part in lines[1] for part in ("rank 0", "KeyError: 'x'"))
    run = play(2)
    run.raised(0, "KeyError", "'x'")
    raised_in_a_thread(run, 1, "ZeroDivisionError", "division by zero")
    assert "ZeroDivisionError" not in run.look().message
