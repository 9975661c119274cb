"""However judge, server or worker end, nothing is left running."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from multigpu.checking.verdicts import Refused
from multigpu.ranks.process_tree import marked

from .conftest import LONG, wait_until

pytestmark = pytest.mark.slow

JUDGE = """
    import sys
    from pathlib import Path
    from multigpu.checking.catalog import Catalog
    from multigpu.checking.learner import Learner
    from multigpu.checking.catalog import Course
    from multigpu.checking.learner import Submission
    from multigpu.checking.learner import WarmServer

    def drive(submission, devices):
        return submission.split(None, devices)

    with WarmServer() as server:
        print(server.processes[0].mark, flush=True)
        exercise = Catalog(Course(Path(sys.argv[1]))).one("split")
        learner = Learner(server, exercise, Submission(Path(sys.argv[2])))
        learner.run(drive, gpus=2, cpu=1000, wall=1000)
"""
COURSE = Path(__file__).resolve().parents[3]
# A worker with a child in its group and a grandchild that fled; it says when they are there.
FAMILY = """
import os, subprocess, time
def split(batch, devices):
    subprocess.Popen(['sleep', '1000'])
    subprocess.Popen(['sleep', '1000'], start_new_session=True)
    open({ready!r}, 'w').close()
    while True: pass
"""


@pytest.fixture
def judge(tmp_path, submission):
    """A judge in its own process whose worker is in the middle of its run, and its mark."""
    ready = tmp_path / "ready"
    (submission / "data_parallel.py").write_text(FAMILY.format(ready=str(ready)))
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(JUDGE), str(COURSE), str(submission)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            mark = process.stdout.readline().strip()
            wait_until(ready.exists)
            wait_until(lambda: len(marked(mark)) == 4)  # server, worker, child, grandchild
            yield process, mark
        finally:
            process.kill()


def test_nothing_outlives_the_judge(judge):
    process, mark = judge
    process.kill()
    process.wait(timeout=LONG)
    wait_until(lambda: not marked(mark))


def test_nothing_outlives_the_server(judge):
    process, mark = judge
    (server,) = (p for p in marked(mark) if p.ppid() == process.pid)
    server.kill()
    assert process.wait(timeout=LONG) == 1  # the judge says that the run failed
    wait_until(lambda: not marked(mark))


def test_a_worker_that_kills_its_supervisor_is_a_crash_and_the_next_run_works(run):
    source = "import os\ndef split(batch, devices):\n    os.kill(os.getppid(), 9)\n    input()\n"
    with pytest.raises(Refused) as refused:
        run(source)
    assert (refused.value.status, refused.value.message_id) == ("crash", "killed_checker")
    assert run("def split(batch, devices):\n    return 1\n").results[0] == 1
