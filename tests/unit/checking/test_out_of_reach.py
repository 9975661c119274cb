"""What a submission cannot read while it is checked."""

import pytest

from multigpu.checking.learner import Learner, Submission
from multigpu.checking.verdicts import Refused

from .conftest import BATCH, COURSE, drive

SOLUTION = COURSE.solutions / "data_parallel.py"
WAYS = {
    "its text": "open(PATH).read()",
    "through /proc": "open(f'/proc/self/root{PATH}').read()",
    "by a program": "subprocess.check_output(['cat', PATH], text=True)",
    "by a shell of subprocess": "subprocess.check_output(f'cat {PATH}', shell=True)",
    "quoted for a shell": "subprocess.check_output(f\"cat '{PATH}'\", shell=True)",
    "without a blank": "os.system(f'cat<{PATH}>copy') or open('copy').read()",
    "from its folder": "subprocess.check_output(['cat', 'x'], cwd=os.path.dirname(PATH))",
    "by another name": "os.link(PATH, 'mine.py') or open('mine.py').read()",
    "by a shell": "os.system(f'cat {PATH} > copy') or open('copy').read()",
    "the folder": "str(os.listdir(os.path.dirname(PATH)))",
    "in another process": "open(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
}
SUBMISSION = """
import os, subprocess
PATH = {path!r}

def split(batch, devices):
    return {way}
"""


@pytest.fixture
def learner(server, submission):
    from multigpu.checking.catalog import Catalog

    out_of_reach = (str(COURSE.root), str(submission.parent))
    exercise = Catalog(COURSE).one("split")
    return Learner(server, exercise, Submission(submission), out_of_reach=out_of_reach)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_submission_cannot_read_the_reference_answers(way, learner, submission):
    source = SUBMISSION.format(path=str(SOLUTION), way=way)
    (submission / "data_parallel.py").write_text(source)
    with pytest.raises(Refused, match="out of reach") as refused:
        learner.run(drive, BATCH, gpus=2)
    assert refused.value.status == "crash"


def test_a_submission_cannot_read_those_of_others(learner, submission):
    other = submission.parent / "ada.py"
    other.write_text("secret")
    source = SUBMISSION.format(path=str(other), way=WAYS["its text"])
    (submission / "data_parallel.py").write_text(source)
    with pytest.raises(Refused, match="out of reach"):
        learner.run(drive, BATCH, gpus=2)


def test_a_submission_can_read_its_own_folder_and_write_where_it_runs(learner, submission):
    (submission / "help.py").write_text("WORD = 'own'")
    source = "import help\ndef split(batch, devices):\n    open('note', 'w').write(help.WORD)\n"
    (submission / "data_parallel.py").write_text(f"{source}    return open('note').read()\n")
    assert learner.run(drive, BATCH, gpus=2).results[0] == "own"


def test_a_submission_cannot_import_the_reference_answers(learner, submission):
    (submission / "data_parallel.py").write_text(
        f"import sys\nsys.path.insert(0, {str(SOLUTION.parent)!r})\n"
        "import collectives\ndef split(batch, devices):\n    return collectives.__doc__\n"
    )
    with pytest.raises(Refused, match="No module named 'collectives'"):
        learner.run(drive, BATCH, gpus=2)
