"""Whose function a notebook uses: the learner's only while it passes its check."""

import contextlib
from pathlib import Path

import pytest

from multigpu.checking import answers
from multigpu.checking.answers import yours_or_reference
from multigpu.checking.catalog import Course
from multigpu.checking.progress import Progress
from multigpu.checking.verdicts import Verdict
from multigpu.cli import main
from multigpu.commands import check as check_command

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
STARTER = '''def {name}(*arguments):
    """The task."""
    raise NotImplementedError
'''
RIGHT_SPLIT = """
def split(batch, devices):
    return [chunk.to(device) for chunk, device in zip(batch.chunk(len(devices)), devices)]
"""
WRONG_GATHER = """
def gather(outputs, device):
    return outputs[0].to(device)
"""


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A copy of the course whose exercises the test writes."""
    for folder in ("solutions", "tests", "course.toml"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "exercises").mkdir()
    monkeypatch.delenv("MULTIGPU_ANSWERS", raising=False)
    return Course(tmp_path)


def write(course, source):
    (course.exercises / "data_parallel.py").write_text(source, encoding="utf-8")


@pytest.fixture
def no_check(monkeypatch):
    """Nothing here needs a check; one that starts is a fault."""

    def refuse(*arguments, **options):
        raise AssertionError("a check was started")

    monkeypatch.setattr(answers.subprocess, "run", refuse)


@pytest.mark.usefixtures("no_check")
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, "data_parallel.py"),
        ("", "not written"),
        (STARTER.format(name="split"), "not written"),
        ("x = 1\ndef split(:", "line 2"),
    ],
)
def test_what_is_not_written_is_taken_from_the_reference(course, source, words):
    if source is not None:
        write(course, source)
    answer = yours_or_reference("data_parallel.split", course=course)
    assert answer.whose == "the reference"
    assert words in answer.reason
    assert answer.function.__code__.co_filename.endswith("solutions/data_parallel.py")


def test_a_function_that_passes_is_yours_and_one_that_does_not_is_not(course, server, monkeypatch):
    def judged_here(command, **options):
        return answers.subprocess.CompletedProcess(command, main(command[3:]), "", "")

    monkeypatch.chdir(course.root)
    monkeypatch.setattr(check_command, "WarmServer", lambda: contextlib.nullcontext(server))
    monkeypatch.setattr(answers.subprocess, "run", judged_here)
    write(course, RIGHT_SPLIT + WRONG_GATHER + STARTER.format(name="broadcast"))
    split = yours_or_reference("data_parallel.split", course=course)
    assert (split.whose, split.reason) == ("yours", "")
    assert split.function.__code__.co_filename == str(course.exercises / "data_parallel.py")
    gather = yours_or_reference("data_parallel.gather", course=course)
    assert gather.whose == "the reference"
    assert "wrong" in gather.reason
    broadcast = yours_or_reference("data_parallel.broadcast", course=course)
    assert broadcast.whose == "the reference"


def test_verdicts_come_from_one_run_until_the_file_changes(course, monkeypatch):
    runs = []

    def judged(command, **options):
        runs.append([word for word in command if word.startswith("data_parallel.")])
        progress = Progress(course)
        progress.note(
            [Verdict(name, "pass", None, {}, 1, 1, 0.1) for name in runs[-1]], progress.sources()
        )
        return answers.subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(answers.subprocess, "run", judged)
    write(course, RIGHT_SPLIT + WRONG_GATHER)
    for name in ("split", "gather", "split"):
        assert yours_or_reference(f"data_parallel.{name}", course=course).whose == "yours"
    assert runs == [["data_parallel.split", "data_parallel.gather"]]
    write(course, RIGHT_SPLIT + "# the same code\n")
    yours_or_reference("data_parallel.split", course=course)
    assert len(runs) == 1
    write(course, RIGHT_SPLIT.replace("chunk.to(device)", "chunk.to(device, copy=True)"))
    yours_or_reference("data_parallel.split", course=course)
    assert runs[1:] == [["data_parallel.split"]]


def test_a_fault_of_the_checker_is_no_verdict_on_the_learners_code(course):
    write(course, RIGHT_SPLIT)
    progress = Progress(course)
    name, sources = "data_parallel.split", progress.sources()
    progress.note([Verdict(name, "checker_fault", "checker_fault", {}, 0, 1, 0.1)], sources)
    assert progress.status(progress.catalog.one(name)) is None
    progress.note([Verdict(name, "pass", None, {}, 1, 1, 0.1)], sources)
    progress.note([Verdict(name, "checker_fault", "checker_fault", {}, 0, 1, 0.1)], sources)
    assert Progress(course).status(progress.catalog.one(name)) == "pass"


@pytest.mark.usefixtures("no_check")
def test_the_site_can_ask_for_the_reference(course, monkeypatch):
    monkeypatch.setenv("MULTIGPU_ANSWERS", "reference")
    write(course, RIGHT_SPLIT)
    answer = yours_or_reference("data_parallel.split", course=course)
    assert (answer.whose, answer.reason) == ("the reference", "")


@pytest.mark.parametrize("name", ["data_parallel.splitt", "data_paralel.split", "split", ""])
def test_a_name_that_does_not_exist_is_refused(course, name):
    with pytest.raises(ValueError, match=rf"{name!r}.*`multigpu list`"):
        yours_or_reference(name, course=course)


@pytest.mark.usefixtures("no_check")
def test_broken_code_as_it_was_handed_out_is_not_yours(course):
    broken = course.broken("hangs").read_text(encoding="utf-8")
    (course.exercises / "hangs.py").write_text(broken, encoding="utf-8")
    answer = yours_or_reference("hangs.early_stop", course=course)
    assert answer.whose == "the reference"
    assert "not written" in answer.reason
