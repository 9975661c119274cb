"""Whatever a command started is ended with it."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from multigpu.ranks.process_tree import leaving_no_process

# Starts a child in a session of its own, as kernels are, and a new one whenever it is lost.
STUBBORN = """
import signal, subprocess, sys
for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(ending, signal.SIG_IGN)
while True:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                             start_new_session=True)
    print(child.pid, flush=True)
    child.wait()
"""


@pytest.fixture
def begin() -> Iterator[Callable[[str], list[psutil.Process]]]:
    """``begin(code)``: a Python process running it, and the child whose number it prints."""
    begun: list[psutil.Process] = []

    def start(code: str) -> list[psutil.Process]:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        pair = [psutil.Process(process.pid), psutil.Process(int(process.stdout.readline()))]
        begun.extend(pair)
        return pair

    yield start
    for process in begun:
        if process.is_running():
            process.kill()


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if process.is_running()]


def test_a_signal_ends_a_process_that_ignores_it_and_its_child(
    begin: Callable[[str], list[psutil.Process]],
) -> None:
    ending = signal.SIGTERM
    usual = signal.getsignal(ending)
    family = []

    def be_stopped() -> None:
        with leaving_no_process():
            family.extend(begin(STUBBORN))
            signal.raise_signal(ending)

    with pytest.raises(KeyboardInterrupt):
        be_stopped()
    assert len(family) == 2
    assert alive(family) == []
    assert signal.getsignal(ending) == usual


def test_a_build_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    """The real program, as ``make site`` runs it, with a build that ignores signals."""
    code = f"""
import subprocess, sys
from pathlib import Path
from multigpu.commands import site
site.this_course = lambda: site.Course(Path({str(tmp_path)!r}))
site.find_pandoc, site.BUILT_WITH = str, ()
site._run_sphinx = lambda root: subprocess.Popen([sys.executable, "-c", {STUBBORN!r}]).wait()
sys.exit(site.main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        family = psutil.Process(program.pid).children(recursive=True)
        program.send_signal(signal.SIGTERM)
        assert program.wait(timeout=30) == 130
    assert len(family) == 2
    assert alive(family) == []
