"""Finding processes where the system does not hand orphans over: by their mark."""

import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from multigpu.ranks import process_tree


@pytest.fixture
def stranger(monkeypatch):
    """A process with our mark that is no descendant: its parent has ended."""
    monkeypatch.setenv(process_tree.MARK, "a mark of this test")
    code = "import subprocess; print(subprocess.Popen(['sleep', '1000'], stdout=-3).pid)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        check=True,
    )
    process = psutil.Process(int(done.stdout))
    yield process
    process.kill()


DESCENDANTS = """
import sys
from multigpu.ranks import process_tree

sys.platform = sys.argv[1]
print(*[process.pid for process in process_tree.descendants()])
"""


@pytest.mark.parametrize(("platform", "found"), [("linux", False), ("darwin", True)])
def test_who_counts_as_a_descendant(stranger, platform, found):
    # In a process of its own: that of the tests may have adopted the stranger.
    command = [sys.executable, "-c", DESCENDANTS, platform]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert (stranger.pid in map(int, done.stdout.split())) is found


class Unkillable:
    """A process that waits in the kernel, for a disk that does not answer."""

    pid = 4711

    def name(self):
        return "writer"

    def kill(self):
        pass


def test_who_could_not_be_ended_is_named(monkeypatch):
    monkeypatch.setattr(process_tree, "ENDING", 0.1)
    monkeypatch.setattr(process_tree, "survivors", lambda: [Unkillable()])
    assert process_tree.end_all() == ["writer (process 4711)"]


class Becoming:
    """A process that is between two programs, and waits for a core there."""

    pid, looks, killed, born, size = 4711, 0, False, float("inf"), 4096

    def environ(self):
        self.looks += 1
        return {process_tree.MARK: "a mark of this test"} if self.looks > 50 else {}

    def create_time(self):
        return self.born

    def memory_info(self):
        return SimpleNamespace(vms=self.size)

    def kill(self):
        self.killed = True


def test_a_process_without_an_environment_for_a_moment_does_not_get_away(monkeypatch):
    process = Becoming()
    monkeypatch.setattr(psutil, "process_iter", lambda: [] if process.killed else [process])
    process_tree.end_marked("a mark of this test")
    assert process.killed


@pytest.mark.parametrize("known", [{"born": 0.0}, {"size": 0}])
def test_processes_older_than_this_one_and_those_of_the_kernel_are_not_waited_for(
    monkeypatch, known
):
    process = Becoming()
    vars(process).update(known)
    monkeypatch.setattr(psutil, "process_iter", lambda: [process])
    process_tree.end_marked("a mark of this test")
    assert process.looks == 1
