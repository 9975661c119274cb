"""Which threads may go on by themselves, as the system tells it."""

import multiprocessing
import os
import platform
import queue
import sys
import threading
import time

import pytest

from multigpu.ranks.state import SystemThreads

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="needs Linux's /proc and its numbers of system calls",
)


def settled(function):
    """The native id of a new thread that has been in ``function`` for a moment."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    time.sleep(0.05)
    return thread.native_id


@pytest.fixture
def threads():
    return SystemThreads([os.getpid()])


def comes_true(condition):
    """Whether one of many looks finds it so: on a busy machine threads begin and end late."""
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.01)
    return False


def stays_awake(threads, thread):
    """Whether look after look finds so, once the thread has come to what it does for long."""
    return comes_true(lambda: all(threads.may_act(0, thread) for _ in range(10)))


def comes_to_rest(threads, thread):
    return comes_true(lambda: not threads.may_act(0, thread))


def others_come_to_rest(threads, known):
    return comes_true(lambda: not threads.others_work(0, known))


def test_a_thread_that_waits_on_a_lock_cannot_act(threads):
    lock = threading.Lock()
    lock.acquire()
    for wait in (lock.acquire, threading.Event().wait, queue.Queue().get):
        assert comes_to_rest(threads, settled(wait))
    lock.release()


def test_a_thread_that_sleeps_or_has_a_time_limit_may_act(threads):
    for wait in (lambda: time.sleep(1000), lambda: threading.Event().wait(1000)):
        assert stays_awake(threads, settled(wait))


def test_a_thread_that_waits_for_another_process_may_act(threads):
    for wait in (multiprocessing.Semaphore(0).acquire, multiprocessing.SimpleQueue().get):
        assert stays_awake(threads, settled(wait))


def test_a_thread_that_is_gone_cannot_act(threads):
    assert comes_to_rest(threads, settled(lambda: None))


def test_a_thread_that_works_is_noticed_unless_it_is_known(threads):
    everyone = {thread.native_id for thread in threading.enumerate()}
    assert others_come_to_rest(threads, everyone)
    end = threading.Event()

    def work():
        while not end.is_set():
            pass

    working = settled(work)
    assert comes_true(lambda: threads.others_work(0, everyone))
    assert stays_awake(threads, working)
    end.set()
    sleeping = settled(lambda: time.sleep(1000))
    assert comes_true(lambda: threads.others_work(0, everyone | {working}))
    assert others_come_to_rest(threads, everyone | {working, sleeping})


def test_a_thread_that_has_moved_between_two_looks_may_act(threads):
    """Threads take turns through locks: between two turns each sleeps on one for a moment."""
    asked, answers = queue.SimpleQueue(), queue.SimpleQueue()

    def answer():
        while True:
            answers.put(asked.get())

    answering = settled(answer)
    assert comes_to_rest(threads, answering)
    for number in range(20):
        asked.put(number)
        assert answers.get() == number
        assert threads.may_act(0, answering)
    assert comes_to_rest(threads, answering)


def test_a_process_that_has_ended_and_is_not_collected_is_dying():
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert comes_true(lambda: SystemThreads([child]).dying(0))
    os.waitpid(child, 0)
    assert not SystemThreads([child]).dying(0)
    assert not SystemThreads([os.getpid()]).dying(0)
