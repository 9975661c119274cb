"""``multigpu start``: what it refuses, when it builds, and that it leaves no process."""

import argparse
import socket
import sys
from collections.abc import Callable

import pytest

from multigpu.cli import main
from multigpu.commands import site, start

Options = Callable[..., argparse.Namespace]


@pytest.fixture
def options(free_port: Callable[[], int]) -> Options:
    """What the command line gives, on a port that is free."""
    return lambda **given: argparse.Namespace(**{"port": free_port(), "no_browser": True, **given})


@pytest.fixture(autouse=True)
def nothing_is_built_or_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a test says so; the pages are stale."""
    monkeypatch.setattr(site, "is_stale", lambda root: True)
    monkeypatch.setattr(site, "failed_before", lambda root: False)
    monkeypatch.setattr(site, "_run_sphinx", lambda root: pytest.fail("built"))
    monkeypatch.setattr("multigpu.commands.start.serve", lambda *_, **__: pytest.fail("opened"))


def test_a_taken_port_is_said_in_one_line_before_anything_is_built(
    options: Options, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert start.run_start(options(port=port)) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"Port {port}")
    assert f"--port {port + 1}" in said
    assert said.count("\n") == 1


def test_a_missing_pandoc_is_said_in_one_line(
    options: Options, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "find_pandoc", lambda: None)
    assert start.run_start(options()) == 2
    said = capsys.readouterr().err
    assert "pandoc" in said
    assert said.count("\n") == 1


def test_a_missing_jupyterlab_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "multigpu.commands.start")
    monkeypatch.setitem(sys.modules, "jupyter_server.serverapp", None)
    assert main(["start", "--no-browser"]) == 2
    said = capsys.readouterr().err
    assert "jupyter_server" in said
    assert "pip install" in said


def test_pages_that_fail_to_build_do_not_close_the_lab(
    options: Options, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    monkeypatch.setattr(site, "build", lambda root: False)
    monkeypatch.setattr(
        "multigpu.commands.start.serve", lambda root, **options: opened.append(options)
    )
    assert start.run_start(options()) == 0
    assert "did not build" in capsys.readouterr().out
    assert opened[0]["open_browser"] is False
