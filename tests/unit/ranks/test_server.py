"""The server and its caller: faults, interruptions and strange circumstances on both sides."""

import os
import textwrap
import time

import pytest

from multigpu.ranks import run, server
from multigpu.ranks.server import Server

RUNS = """
    import os, sys

    def warm_up():
        pass

    def serve(job, connection, folder):
        connection.send(("server", os.getpid()))
        if job == "fails" or not isinstance(job, str):
            raise ZeroDivisionError("in the supervisor")
        if job == "is told to end":
            raise KeyboardInterrupt
        connection.send(("report", connection.recv()))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A module for servers that do what the job says."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "runs_of_this_test.py").write_text(textwrap.dedent(RUNS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield "runs_of_this_test"


@pytest.fixture(scope="module")
def served(runs):
    with Server(runs) as server:
        yield server


def one_run(served):
    """The server of a run that goes well, as a number of its process."""
    with served.run("goes well") as receive:
        _, number = receive()
        assert [number] == [process.popen.pid for process in served.processes]
    return number


@pytest.mark.slow
def test_a_signal_to_the_server_is_no_fault_of_ours(served):
    with served.run("is told to end") as receive:
        receive()
        with pytest.raises(server.ServerDied):
            receive()


@pytest.mark.slow
def test_run_ranks_raises_the_fault_of_its_server(served, monkeypatch):
    monkeypatch.setattr(run, "RANKS", served)
    with pytest.raises(RuntimeError, match=r"(?s)failed.*ZeroDivisionError"):
        run.run_ranks(print, 2)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interruption_while_a_run_begins_leaves_the_connection_in_order(
    served, monkeypatch, when
):
    def interrupted(*arguments):
        if when == "after":
            send_handle(*arguments)
        raise KeyboardInterrupt

    first, send_handle = one_run(served), server.send_handle
    monkeypatch.setattr(server, "send_handle", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught, served.run("goes well"):
        pass
    monkeypatch.undo()
    assert one_run(served) == first
    del caught  # whose frames hold on to what the interrupted run had


@pytest.mark.slow
def test_a_child_of_the_caller_has_a_server_of_its_own(served):
    first, child = one_run(served), os.fork()
    if child == 0:
        same = True
        try:
            same = one_run(served) == first
        finally:
            os._exit(same)
    assert os.waitpid(child, 0)[1] == 0
    assert one_run(served) == first


def test_a_child_of_the_caller_does_not_keep_the_server_from_its_end(served):
    one_run(served)
    (process,) = served.processes
    child = os.fork()  # it has copies of all our connections
    if child == 0:
        time.sleep(1000)
        os._exit(0)
    served.close()
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert process.popen.returncode == 0, "it was killed, as it did not end"
