"""Tests that need GPUs, the built site or a tool: what is missing here is said, never hidden.

In CI (``CI=true``) everything but a GPU is installed, so there a missing tool fails its tests.
"""

import contextlib
import gc
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

pytest_plugins = [
    "multigpu.checking.plugin",
    "pytester",
]  # tests/exercises: the checks and their options

sys.modules["rfc3987_syntax"] = None  # nbformat needs jsonschema: see multigpu/commands/start.py

ROOT = Path(__file__).resolve().parents[1]
# These need nothing of each other, so test processes take them one by one. They come first, the
# longest before all others, so that no process is left with a long one at the end.
ONE_BY_ONE = (
    "tests/site/test_fresh_runs.py",
    "tests/answers/",
    "tests/repository/commands/",
    "tests/exercises/sharding/",
    "tests/exercises/",
)

PAGES = "tests/site/test_every_page.py::"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-gpu", action="store_true", help="fail where there is no NVIDIA GPU")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") and hasattr(os, "SCHED_BATCH"):
        # One of several test processes: with its children it takes longer turns on a core, so that
        # less time goes into taking turns.
        with contextlib.suppress(OSError):  # not every sandbox lets us choose
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    # Below `make test &` a shell has it ignored, and the programs that tests start would, too.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("--require-gpu", default=False) and gpu_count() == 0:
        pytest.exit("There is no NVIDIA GPU that PyTorch can use on this machine.", returncode=1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        needed = 2 if item.get_closest_marker("multi_gpu") else 1
        if not (item.get_closest_marker("gpu") or item.get_closest_marker("multi_gpu")):
            continue
        if gpu_count() < needed:
            reason = f"needs {needed} NVIDIA GPU(s), this machine has {gpu_count()}"
            item.add_marker(pytest.mark.skip(reason=reason))
    if hasattr(config, "workerinput"):  # one of several test processes
        items.sort(key=lambda item: turn(item.nodeid))


def turn(nodeid: str) -> int:
    """The place of a test among those that go one by one; the last for all others."""
    last = len(ONE_BY_ONE)
    return next((n for n, start in enumerate(ONE_BY_ONE) if nodeid.startswith(start)), last)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """With `--dist loadfile` a file stays in one process, but for the tests that go one by one.

    So do the answers to one exercise: what its mistakes do is found once for all of them. And so
    does each quarter of the site's pages, which the browser visits once for all that is asked.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class FilesAndSingleTests(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith("tests/answers/"):
                return nodeid.partition("-")[0]
            if nodeid.startswith(PAGES):
                return PAGES + nodeid.partition("[")[2].rstrip("]").partition("-")[0]
            return nodeid if turn(nodeid) < len(ONE_BY_ONE) else nodeid.partition("::")[0]

    return FilesAndSingleTests(config, log)


def pytest_collection_finish() -> None:
    """What thousands of tests are made of stays: no search for garbage need look at it again."""
    gc.collect()
    gc.freeze()


@cache
def gpu_count() -> int:
    """How many real GPUs PyTorch sees; torch is imported only when a test asks."""
    import torch

    return torch.cuda.device_count()


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """``free_port()``: a port of this machine that nobody listens on."""

    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    return find


@pytest.fixture(scope="session")
def tool() -> Callable[..., str]:
    """``tool("chromium", "google-chrome")``: the path of the first that is installed."""

    def find(*names: str) -> str:
        for name in names:
            if path := shutil.which(name):
                return path
        missing(f"{names[0]} is not installed (Debian: sudo apt install {names[0]})")

    return find


@pytest.fixture(scope="session")
def node_module(tool: Callable[..., str]) -> Callable[[str], Path]:
    """``node_module("axe-core")``: its folder, as ``make test`` installs it with npm."""

    def find(name: str) -> Path:
        tool("node")
        folder = ROOT / "tests" / "site" / "node_modules" / name
        if not folder.is_dir():
            missing(f"{name} is not installed (npm ci --prefix tests/site)")
        return folder

    return find


@pytest.fixture(scope="session")
def built_site() -> Path:
    """The folder of the built site, built now if it is stale; warnings fail the build."""
    from multigpu.checking.catalog import Course
    from multigpu.commands import site

    try:
        built = not site.failed_before(ROOT) and site.build(ROOT)
        assert built, "the site did not build, run make site"
    except site.CannotBuild as problem:
        missing(str(problem))
    return Course(ROOT).pages


def missing(reason: str) -> NoReturn:
    """Skip with ``reason``, or fail with it in CI, where every tool is installed."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
