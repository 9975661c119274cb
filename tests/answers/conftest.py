"""Gives each answer in this folder to the checks, all through one warm server."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from multigpu.checking.catalog import Catalog
from multigpu.checking.declaration import Mistake
from multigpu.checking.learner import WarmServer
from multigpu.checking.plugin import SESSION
from multigpu.checking.session import Check, check_with
from multigpu.checking.verdicts import Verdict

from .side_by_side import ids_side_by_side
from .stored import COURSE, Answer, answers, quick_answers


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Iterator[WarmServer]:
    """That of ``tests/exercises`` if they run, too: it imports torch once for both."""
    session = pytestconfig.stash.get(SESSION, None)
    if session is not None:
        session.server = session.server or WarmServer()
        yield session.server  # the plugin closes it
        return
    with WarmServer() as server:
        yield server


@pytest.fixture(scope="session")
def id_side_by_side(server: WarmServer) -> Callable[[Answer], str | None]:
    """``id_side_by_side(answer)``: the id of the message on a mistake in a run with others.

    None where such a run does not tell, and for answers that need a run of their own.
    """

    @cache
    def ids(exercise: str) -> dict[Mistake, str]:
        own = [a for a in answers() if a.exercise == exercise and a not in quick_answers()]
        mistakes = [a.mistake for a in own if a.mistake and a.mistake.ends == "wrong"]
        return ids_side_by_side(exercise, mistakes, server, choose=in_one_world)

    return lambda answer: ids(answer.exercise).get(answer.mistake)


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
            stop_at_first=True,
            choose=in_one_world if one_world else list,
        )
        return verdict

    return judge


def in_one_world(checks: list[Check]) -> list[Check]:
    """The checks on three ranks or GPUs, else on most; those without ranks and GPUs are kept."""
    worlds = {check.world for check in checks if check.world}
    kept = 3 if 3 in worlds else max(worlds, default=None)
    return [check for check in checks if check.world in (kept, None)]
