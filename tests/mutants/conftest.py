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
    """Of each check that runs on several numbers of ranks or GPUs, keeps the one on three.

    Where there is none on three, the one on most.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        by_check: dict[str, dict[int, list[pytest.Item]]] = {}
        for item in items:
            params = getattr(item, "callspec").params if hasattr(item, "callspec") else {}  # noqa: B009
            world = params.get("world", params.get("n", getattr(item, "world", None)))
            if isinstance(world, int):
                check = item.nodeid.partition("[")[0]
                by_check.setdefault(check, {}).setdefault(world, []).append(item)
        for worlds in by_check.values():
            kept = 3 if 3 in worlds else max(worlds)
            for world, own in worlds.items():
                if world != kept:
                    items[:] = [item for item in items if item not in own]
