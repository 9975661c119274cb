"""One warm server for all tests here, and a way to run a few lines of a learner's code in it."""

import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from multigpu.checking.catalog import Catalog, Exercise, Signature, find_course
from multigpu.checking.learner import Answer, Learner, Submission, WarmServer

COURSE = find_course(Path(__file__).resolve().parent)
LONG = 300.0  # seconds after which nothing will happen any more
BATCH = torch.arange(10.0).reshape(5, 2)


def drive(submission, devices, batch):
    return submission.split(batch, devices)


def wait_until(true: Callable[[], bool]) -> None:
    """Return when ``true()`` is, as soon as a busy machine gets there."""
    deadline = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def average_on_ranks(submission, rank, tensor):
    """What ``average`` makes of rank times ``tensor``, in place."""
    tensor = tensor * (rank + 1)
    submission.average(tensor)
    return tensor


@pytest.fixture(scope="session")
def server() -> Iterator[WarmServer]:
    with WarmServer() as server:
        yield server


@pytest.fixture
def submission(tmp_path: Path) -> Path:
    folder = tmp_path / "submission"
    folder.mkdir()
    return folder


@pytest.fixture
def learner(server: WarmServer, submission: Path) -> Learner:
    return Learner(server, Catalog(COURSE).one("split"), Submission(submission))


@pytest.fixture
def run(learner: Learner, submission: Path) -> Callable[..., Answer]:
    """``run(source)``: what comes back from ``split`` in a module with this text."""

    def run(source: str, drive=drive, *, gpus: int = 2, **limits: float) -> Answer:
        (submission / "data_parallel.py").write_text(textwrap.dedent(source), encoding="utf-8")
        learner.submission = Submission(submission)  # it keeps the text that it has read
        return learner.run(drive, BATCH, gpus=gpus, **limits)

    return run


CHAPTER = {chapter.module: chapter for chapter in Catalog(COURSE).chapters}


@pytest.fixture
def run_ranks(server: WarmServer, submission: Path) -> Callable[..., Answer]:
    """``run_ranks(source)``: what comes back from ``average`` in a module with this text."""

    def run(
        source: str,
        drive=average_on_ranks,
        *,
        world: int = 3,
        module: str = "distributed_data_parallel",
        on: WarmServer = server,
        **limits: float,
    ) -> Answer:
        about = (Signature(("tensor",), (), "average(tensor)"), "Average.")
        exercise = Exercise(CHAPTER[module], "average", *about)
        start = "import os, sys, torch\nimport torch.distributed as dist\n"
        text = start + textwrap.dedent(source)
        (submission / exercise.file).write_text(text, encoding="utf-8")
        learner = Learner(on, exercise, Submission(submission))
        return learner.run(drive, torch.ones(2), world=world, **limits)

    return run
