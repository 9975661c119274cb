"""Whatever ends a run, no process and no file of it is left."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

# The ranks import torch, and the program itself does not: it has no use for it.
PROGRAM = """
    import os, signal, subprocess, sys, time
    from multigpu import RankError, run_ranks

    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below `make test &`

    def returns():
        import torch.distributed as dist
        dist.barrier()

    def fails():
        import torch.distributed as dist
        if dist.get_rank() == 1:
            raise ValueError
        dist.barrier()

    def hangs():
        import torch.distributed as dist
        if dist.get_rank() == 1:
            dist.barrier()

    def waits():
        print("waiting", flush=True)
        time.sleep(1000)

    def leaves_a_process():
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        returns()

    def starts_a_daemon():
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execvp("sleep", ["sleep", "1000"])
            os._exit(0)
        waits()

    def attempt(fn):
        try:
            run_ranks(fn, 2)
        except (RankError, KeyboardInterrupt) as error:
            print(type(error).__name__)
        print("over", flush=True)

"""
ATTEMPTS = "for name in sys.stdin: attempt(globals()[name.strip()])"  # until its input ends


class Caller:
    """A program that calls ``run_ranks``, and the processes that come from it."""

    def __init__(self, code, folder):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM) + code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": str(folder)},
        )

    def attempt(self, name):
        """Have a program of ATTEMPTS run this function on ranks."""
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()

    def says(self, text):
        """Read its output up to a line with this text."""
        return any(text in line for line in self.process.stdout)

    def family(self, of):
        """The living processes that were started in its name, those for which ``of`` is true."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                mine = process.environ().get("TMPDIR") == str(self.folder)
                if mine and process.status() != psutil.STATUS_ZOMBIE and of(process):
                    found.append(process)
        return found

    def ranks(self):
        """Its ranks, and what they have started."""
        servers = psutil.Process(self.process.pid).children()
        known = {self.process.pid, *(server.pid for server in servers)}
        return self.family(lambda process: process.pid not in known)

    def leftovers(self):
        """What is there some time after its end, which is long on a busy machine."""
        deadline = time.monotonic() + 300
        while (left := self.family(lambda _: True)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left, list(self.folder.iterdir())

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def caller(tmp_path_factory):
    """A program that attempts one run after the other, all in one server."""
    caller = Caller(ATTEMPTS, tmp_path_factory.mktemp("callers") / "0")
    yield caller
    caller.close()


@pytest.mark.parametrize("ending", ["returns", "fails", "hangs", "leaves_a_process"])
def test_nothing_is_left_when_the_call_returns(caller, ending):
    caller.attempt(ending)
    assert caller.says("over")
    assert caller.ranks() == []
    assert list(caller.folder.iterdir()) == []


def test_ctrl_c_ends_the_ranks(caller):
    caller.attempt("waits")
    assert caller.says("waiting")
    assert caller.ranks()
    caller.process.send_signal(signal.SIGINT)
    assert caller.says("KeyboardInterrupt")
    assert caller.says("over")
    assert caller.ranks() == []
    caller.attempt("returns")
    assert caller.says("over")  # and the next run works


@pytest.mark.slow
def test_nothing_is_left_when_the_server_is_killed_that_could_adopt_it(caller):
    caller.attempt("starts_a_daemon")
    assert caller.says("waiting")
    (server,) = psutil.Process(caller.process.pid).children()
    server.kill()
    assert caller.says("RankError")
    assert caller.says("over")
    assert caller.ranks() == []
    assert list(caller.folder.iterdir()) == []
    caller.attempt("returns")
    assert caller.says("over")  # and the next run works


def test_the_server_ends_with_the_program(caller):
    caller.attempt("returns")
    assert caller.says("over")
    caller.process.stdin.close()
    assert caller.leftovers() == ([], [])


@pytest.mark.slow
def test_nothing_is_left_when_the_caller_is_killed_at_a_random_moment(tmp_path):
    code = "while True: attempt(leaves_a_process)"
    callers = [Caller(code, tmp_path / str(number)) for number in range(2)]
    try:
        for caller in callers:
            assert caller.says("over")
            time.sleep(random.uniform(0, 1))
            caller.process.kill()
        for caller in callers:
            assert caller.leftovers() == ([], [])
    finally:
        for caller in callers:
            caller.close()
