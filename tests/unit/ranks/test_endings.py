"""Runs that end badly: each with its kind, the ranks to blame, and words that name the place."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from multigpu import RankError, run_ranks


def failed(function, world_size=3, *arguments, **options):
    with pytest.raises(RankError) as caught:
        run_ranks(function, world_size, *arguments, show=False, **options)
    return caught.value


def line_of(text):
    """The number of the line of this file that ends in a comment with this text."""
    with open(__file__) as file:
        return next(n for n, line in enumerate(file, 1) if line.rstrip().endswith(f"# {text}"))


def raise_on_one():
    dist.barrier()
    if dist.get_rank() == 1:
        print("about to raise", end="")
        raise ValueError("no such thing")  # raised here
    dist.barrier()


def test_an_exception_names_its_rank_and_its_line():
    error = failed(raise_on_one)
    assert (error.kind, error.ranks) == ("exception", (1,))
    first, second = str(error).splitlines()[:2]
    assert all(part in first for part in ("rank 1", "ValueError", "no such thing"))
    assert f"test_endings.py:{line_of('raised here')} in raise_on_one" in second
    assert "/multigpu/ranks/" not in str(error)
    assert error.trace.collectives(rank=1)
    assert error.outputs == ["", "about to raise", ""]


def test_an_exception_in_a_library_names_the_readers_line_first():
    def add():
        torch.nn.functional.linear(torch.ones(2, 3), torch.ones(3, 2))  # misfit

    error = failed(add, 2)
    assert (error.kind, error.ranks) == ("exception", (0, 1))
    assert f"test_endings.py:{line_of('misfit')} in add" in str(error).splitlines()[1]


def leave(how):
    if dist.get_rank() == 2:
        how()
    dist.barrier()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda: sys.exit(3), "sys.exit(3)"),
        (lambda: os._exit(0), "os._exit(0)"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
    ],
)
def test_a_rank_that_leaves_is_blamed(how, said):
    error = failed(leave, 3, how)
    assert (error.kind, error.ranks) == ("exit", (2,))
    assert "rank 2" in str(error)
    assert said in str(error)


def test_a_deadlock_is_found_long_before_the_timeout():
    def alone():
        if dist.get_rank() != 2:
            dist.barrier()

    error = failed(alone)
    assert (error.kind, error.ranks) == ("deadlock", (2,))


def limited_wait():
    dist.all_reduce(torch.ones(1), async_op=True).wait(timedelta(seconds=1))


def limited_barrier():
    dist.monitored_barrier(timeout=timedelta(seconds=1))


@pytest.mark.parametrize("limited", [limited_wait, limited_barrier])
def test_a_call_with_a_time_limit_is_no_deadlock(limited):
    """The program may catch the error, as it does here."""

    def catches():
        if dist.get_rank() == 1:
            return "elsewhere"
        try:
            limited()
        except RuntimeError:
            return "caught"
        return "ended"

    assert run_ranks(catches, 2, show=False) == ["caught", "elsewhere"]


def test_a_time_limit_beyond_that_of_the_run_hides_no_deadlock():
    def patient():
        if dist.get_rank() != 1:
            dist.monitored_barrier(timeout=timedelta(minutes=5))

    error = failed(patient, 3)
    assert (error.kind, error.ranks) == ("deadlock", (1,))


def test_no_progress_shows_where_the_busy_rank_stands():
    def busy():
        if dist.get_rank() == 0:
            while True:
                time.sleep(0.1)  # it stands here
        dist.barrier()

    error = failed(busy, 2, timeout=1.5)
    assert (error.kind, error.ranks) == ("no_progress", (0,))
    assert f"test_endings.py:{line_of('it stands here')} in busy" in str(error)


def test_a_thread_that_outlives_the_function_is_ended_at_the_timeout():
    def leaves_a_thread():
        if dist.get_rank() == 1:
            threading.Thread(target=time.sleep, args=(1000,)).start()

    error = failed(leaves_a_thread, 2, timeout=1.5)
    assert (error.kind, error.ranks) == ("no_progress", (1,))
    assert "daemon=True" in str(error)


FAILED_FORK = """
import os, time
from multiprocessing import Pipe
from multigpu.ranks import process_tree
from multigpu.ranks.resource_monitor import UNLIMITED
from multigpu.ranks.supervisor import Supervisor

fork, started = os.fork, []

def once():
    if started:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    started.append(fork())
    return started[0]

process_tree.adopt_orphans()
ours, theirs = Pipe()
os.fork = once
try:
    Supervisor(3, lambda number, write: time.sleep(1000), limits=UNLIMITED, caller=ours).run()
except BlockingIOError:
    assert not process_tree.descendants()
else:
    raise AssertionError("started without its second process")
"""


def test_where_a_process_cannot_be_started_those_before_it_are_ended():
    """As where a user has too many of them."""
    subprocess.run([sys.executable, "-c", FAILED_FORK], check=True, timeout=60)


def test_without_a_trace_a_deadlock_is_no_progress_and_shows_both_stacks():
    def swapped():
        other = 1 - dist.get_rank()
        dist.recv(torch.zeros(1), other)  # both receive

    error = failed(swapped, 2, trace=False, timeout=1.5)
    assert (error.kind, error.ranks) == ("no_progress", (0, 1))
    assert str(error).count(f"test_endings.py:{line_of('both receive')} in swapped") == 2


def test_an_error_comes_whole_through_a_process_pool():
    error = failed(raise_on_one)
    error.add_note("seen in a pool")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is RankError
    assert str(copy) == str(error)
    for name in ("kind", "ranks", "outputs", "finding", "__notes__"):
        assert getattr(copy, name) == getattr(error, name)
    assert list(map(vars, copy.trace.calls)) == list(map(vars, error.trace.calls))


def test_what_the_callers_own_alarm_raises_comes_out_as_it_is():
    mine = TimeoutError("mine")

    def alarm(*_):
        raise mine

    before = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        with pytest.raises(TimeoutError) as caught:
            run_ranks(lambda: time.sleep(1000), 2, show=False)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert caught.value is mine


def thread_that_raises():
    if dist.get_rank() == 1:
        thread = threading.Thread(target=lambda: 1 / 0)  # divided here
        thread.start()
        thread.join()
    else:
        dist.barrier()


def test_an_exception_that_ended_a_thread_is_named_with_its_line():
    error = failed(thread_that_raises)
    assert (error.kind, error.ranks) == ("deadlock", (1,))
    line = line_of("divided here")
    first = str(error).splitlines()[0]
    place = f"test_endings.py:{line}"
    assert all(part in first for part in ("thread", "rank 1", "ZeroDivisionError", place))
    assert "Traceback" in error.outputs[1]
