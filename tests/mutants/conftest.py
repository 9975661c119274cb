"""Gives each answer in this folder to the checks, all through one warm server."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from multigpu.checking.catalog import Catalog, find_course
from multigpu.checking.learner import WarmServer
from multigpu.checking.session import check_with
from multigpu.checking.verdicts import Verdict

COURSE = find_course(Path(__file__).resolve().parent)


@pytest.fixture(scope="session")
def server() -> Iterator[WarmServer]:
    with WarmServer() as server:
        yield server


@pytest.fixture
def verdict_on(server: WarmServer, tmp_path: Path) -> Callable[..., Verdict]:
    """``verdict_on("data_parallel.split", source)``: the verdict on a module with this text."""

    def judge(exercise: str, source: str, *, one_world: bool = False) -> Verdict:
        found = Catalog(COURSE).one(exercise)
        (tmp_path / found.file).write_text(source, encoding="utf-8")
        (verdict,) = check_with(
            server, [found], COURSE, submission=tmp_path, backing="cpu", first_only=True,
            one_world=one_world,
        )  # fmt: skip
        return verdict

    return judge
