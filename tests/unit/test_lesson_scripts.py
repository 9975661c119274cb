"""The training scripts that lesson 2 shows: they run, and differ only in the lines marked NEW."""

import difflib
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from multigpu import virtual_gpus

SCRIPTS = Path(__file__).parents[2] / "docs" / "lessons" / "scripts"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code_lines(name: str) -> list[str]:
    """The script without its docstring, which says what to read next."""
    return (SCRIPTS / f"{name}.py").read_text().split('"""', 2)[2].splitlines()


def test_every_line_that_dp_adds_says_why_it_is_new() -> None:
    changes = difflib.ndiff(code_lines("one_gpu"), code_lines("dp"))
    added = [line[2:] for line in changes if line.startswith("+ ") and line[2:].strip()]
    unmarked = [line for line in added if "# NEW: " not in line]
    assert added
    assert not unmarked
    assert len(added) <= 5, "the diff is the lesson: keep it small"


def test_dp_trains_as_well_as_one_gpu_and_uses_all_of_them() -> None:
    with virtual_gpus(1):
        alone = load("one_gpu").train(epochs=2)
    with virtual_gpus(3) as machine:
        together = load("dp").train(epochs=2)
    assert alone > 0.5, "the network has learned something"
    assert together == pytest.approx(alone, abs=0.02)
    assert {"cuda:0", "cuda:1", "cuda:2"} <= {copy.target for copy in machine.traffic}
    assert ("cpu", "cuda:2") in machine.traffic.by_link(), "rows go straight to their GPU"
