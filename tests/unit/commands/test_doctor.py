"""``multigpu doctor``: what it looks at, what it advises, and what its exit code means."""

import argparse
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec

import pytest

from multigpu.cli import main
from multigpu.commands import doctor
from multigpu.commands.doctor import Remark

FINE = Remark("disk", "30 GiB free")


PROBLEM = Remark("pandoc", "not found", "problem", "Install it.")


def only(check: Callable[[], Iterator[Remark]]) -> Remark:
    (remark,) = check()
    return remark


def run(monkeypatch: pytest.MonkeyPatch, *findings: Remark) -> int:
    monkeypatch.setattr(doctor, "examine", lambda port: iter(findings))
    return doctor.run_doctor(argparse.Namespace(port=8888))


def test_every_problem_comes_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, FINE, PROBLEM)
    said = capsys.readouterr().out
    *findings, _, conclusion = said.splitlines()
    assert findings == [
        f"ok       disk       {FINE.says}",
        f"problem  pandoc     {PROBLEM.says}",
        f"                    -> {PROBLEM.advice}",
    ]
    assert "1 problem " in conclusion


@pytest.mark.slow
def test_on_this_machine_it_looks_at_everything_and_prints_plainly(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["doctor"])
    said, errors = capsys.readouterr()
    assert (code, errors) == (0, ""), said
    assert "\x1b" not in said
    for subject in ("Python", "PyTorch", "GPUs", "backends", "jupyterlab", "sphinx", "pandoc",
                    "port", "disk", "memory", "folder"):  # fmt: skip
        assert f" {subject} " in said


def test_a_missing_package_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def spec(name: str) -> ModuleSpec | None:
        return None if name == "sphinx" else find_spec(name)

    monkeypatch.setattr(doctor, "find_spec", spec)
    bad = [found for found in doctor.packages() if found.status != "ok"]
    assert [(found.subject, found.status) for found in bad] == [("sphinx", "problem")]


def test_a_missing_pandoc_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """The build needs pypandoc to find it, even where there is one on PATH."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setitem(sys.modules, "pypandoc", None)
    bad = [found for found in doctor.packages() if found.status != "ok"]
    assert [(found.subject, found.status) for found in bad] == [("pandoc", "problem")]


def test_a_taken_port_is_noted_and_a_free_one_is_fine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert only(lambda: doctor.free_port(port)).status == "note"
    assert only(lambda: doctor.free_port(port)).status == "ok"
    assert only(lambda: doctor.free_port(70_000)).status == "note", "no machine has it"


def test_a_folder_that_cannot_be_written_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(doctor.folder).status == "ok"
    monkeypatch.setattr(os, "access", lambda path, mode: "exercises" not in str(path))
    assert only(doctor.folder).status == "problem"


def test_a_file_that_hides_the_package_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not list(doctor.hidden())
    (tmp_path / "multigpu.py").touch()
    remark = only(doctor.hidden)
    assert remark.status == "problem"
    assert str(tmp_path / "multigpu.py") in remark.says
    assert "mv multigpu.py" in str(remark.advice)
