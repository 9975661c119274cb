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

    def works():
        import torch
        import torch.distributed as dist
        leaves_a_process()
        for _ in range(3):
            dist.all_reduce(torch.ones(10))
            time.sleep(0.02)

    def starts_a_daemon():
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execvp("sleep", ["sleep", "1000"])
            os._exit(0)
        waits()

    def starts_a_daemon_in_a_run_of_its_own():
        run_ranks(starts_a_daemon, 1)

    FLAG = os.environ["TMPDIR"] + ".flag"

    def raises_a_flag():
        open(FLAG, "w").close()
        waits()

    def fails_while_a_run_goes_on_in_it():
        import torch.distributed as dist
        if dist.get_rank() == 0:
            run_ranks(raises_a_flag, 1)
        while not os.path.exists(FLAG):
            time.sleep(0.02)
        raise ValueError

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


@pytest.fixture
def start(tmp_path):
    callers = []

    def start(code):
        callers.append(Caller(code, tmp_path / str(len(callers))))
        return callers[-1]

    yield start
    for caller in callers:
        caller.close()


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


def test_the_server_ends_with_the_program(caller):
    caller.attempt("returns")
    assert caller.says("over")
    caller.process.stdin.close()
    assert caller.leftovers() == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_nothing_is_left_when_the_caller_is_killed_at_a_random_moment(start, number):
    callers = [start("while True: attempt(works)") for _ in range(4)]
    for caller in callers:
        time.sleep(random.uniform(0, 2))
        caller.process.kill()
    for caller in callers:
        assert caller.leftovers() == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("generation", ["server", "rank"])
def test_nothing_is_left_when_another_process_is_killed(start, generation):
    caller = start("attempt(waits); attempt(returns); time.sleep(1000)")
    assert caller.says("waiting")
    parents = [psutil.Process(caller.process.pid)]
    for _ in range(("server", "rank").index(generation) + 1):
        parents = [child for parent in parents for child in parent.children()]
    parents[0].kill()
    assert caller.says("over")
    assert caller.says("over")  # the next run works
    caller.close()
    assert caller.leftovers() == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("fn", ["starts_a_daemon", "starts_a_daemon_in_a_run_of_its_own"])
def test_nothing_is_left_when_the_server_is_killed_that_could_adopt_it(start, fn):
    caller = start(f"attempt({fn}); time.sleep(1000)")
    assert caller.says("waiting")
    (server,) = psutil.Process(caller.process.pid).children()
    server.kill()
    assert caller.says("RankError")
    assert caller.says("over")
    assert caller.ranks() == []
    assert list(caller.folder.iterdir()) == []


@pytest.mark.slow
def test_a_run_inside_a_rank_leaves_no_folder_when_the_outer_run_fails(start):
    caller = start("attempt(fails_while_a_run_goes_on_in_it); time.sleep(1000)")
    assert caller.says("RankError")
    assert caller.says("over")
    assert caller.ranks() == []
    assert list(caller.folder.iterdir()) == []


STOPS_A_SLOW_SERVER = """
import signal, threading, time
from multigpu import run_ranks
from multigpu.ranks.server import RANKS

run_ranks(print, 1, show=False)
popen = RANKS.processes[0].popen
popen.send_signal(signal.SIGSTOP)
threading.Timer(11, popen.send_signal, [signal.SIGCONT]).start()
RANKS.close()
assert popen.returncode == 0, popen.returncode
"""


@pytest.mark.slow
def test_a_server_has_longer_to_end_than_it_needs_on_a_busy_machine():
    """It was killed after 10 s, and it may take 15 to end its ranks."""
    subprocess.run([sys.executable, "-c", STOPS_A_SLOW_SERVER], check=True, timeout=300)
