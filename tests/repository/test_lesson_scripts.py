"""The training scripts of lessons 2 and 6: they run, and differ only in the lines marked NEW."""

import difflib
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from multigpu import virtual_gpus

SCRIPTS = Path(__file__).parents[2] / "docs" / "scripts"


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


@pytest.mark.parametrize("name", ["dp", "ddp"])
def test_every_line_that_is_added_says_why_it_is_new(name: str) -> None:
    changes = difflib.ndiff(code_lines("one_gpu"), code_lines(name))
    added = [line[2:] for line in changes if line.startswith("+ ") and line[2:].strip()]
    unmarked = [line for line in added if "# NEW: " not in line]
    assert added
    assert not unmarked


@pytest.mark.slow
def test_dp_trains_as_well_as_one_gpu_and_uses_all_of_them() -> None:
    with virtual_gpus(1):
        alone = load("one_gpu").train(epochs=2)
    with virtual_gpus(3) as machine:
        together = load("dp").train(epochs=2)
    assert alone > 0.5, "the network has learned something"
    assert together == pytest.approx(alone, abs=0.02)
    assert {"cuda:0", "cuda:1", "cuda:2"} <= {copy.target for copy in machine.traffic}
    assert ("cpu", "cuda:2") in machine.traffic.by_link(), "rows go straight to their GPU"


@pytest.mark.multi_gpu
def test_ddp_runs_on_real_gpus() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node", "2", str(SCRIPTS / "ddp.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
