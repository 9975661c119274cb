"""One warm server for all tests here, and a way to run a few lines of a learner's code in it."""

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from multigpu.checking.catalog import Catalog
from multigpu.checking.learner import Answer, Learner
from multigpu.checking.places import find_course
from multigpu.checking.submission import Submission
from multigpu.checking.warm import WarmServer

COURSE = find_course(Path(__file__).resolve().parent)
BATCH = torch.arange(10.0).reshape(5, 2)


def drive(submission, devices, batch):
    return submission.split(batch, devices)


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
