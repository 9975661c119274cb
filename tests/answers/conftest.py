"""Gives each answer in this folder to the checks, all through one warm server."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from multigpu.checking.catalog import Catalog
from multigpu.checking.learner import WarmServer
from multigpu.checking.session import Check, check_with
from multigpu.checking.verdicts import Verdict

from .stored import COURSE


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
            server,
            [found],
            COURSE,
            submission=tmp_path,
            backing="cpu",
            options=["-x"],
            plugins=[OneWorld()] if one_world else [],
        )
        return verdict

    return judge


class OneWorld:
    """Of the checks of an exercise, keeps the one on three ranks or GPUs, else the one on most.

    Those without ranks and GPUs are kept.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        worlds = {item.world for item in items if isinstance(item, Check) and item.world}
        kept = 3 if 3 in worlds else max(worlds, default=None)
        items[:] = [i for i in items if isinstance(i, Check) and i.world in (kept, None)]
