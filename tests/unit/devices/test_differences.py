"""What virtual GPUs do, and how it differs from CUDA: each entry of differences.toml still holds.

The tables of docs/reference/virtual_gpus.rst are made from the same file.
"""

import ast
import re
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

KINDS = tomllib.loads(Path(__file__).with_name("differences.toml").read_text(encoding="utf-8"))
ENTRIES = [entry for entries in KINDS.values() for entry in entries]


def outcome(program: str) -> str:
    """The value of a program's last line, or its exception; empty for None."""
    names: dict[str, object] = {"torch": torch, "nn": nn, "functional": functional}
    names["x"] = torch.ones(2, 2, device="cuda")
    *before, last = ast.parse(program).body
    assert isinstance(last, ast.Expr)
    try:
        exec(compile(ast.Module(before, []), "program", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "program", "eval"), names)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if value is None else repr(value)


def fits(virtual: str, came: str) -> bool:
    """Whether an outcome is the one of an entry, in which "…" is for words left out."""
    parts = [re.escape(part.strip()) for part in virtual.split("…")]
    return re.fullmatch(".*".join(parts), came, re.DOTALL) is not None


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["write"].split("\n")[-2:][0])
def test_virtual_gpus_do_what_the_page_says(entry: dict[str, str]) -> None:
    came = outcome(entry["write"])
    assert fits(entry["virtual"], came), came
    assert ("cuda" in entry) is (entry not in KINDS["same"])


@pytest.mark.gpu
@pytest.mark.parametrize("entry", KINDS["same"], ids=lambda entry: entry["write"])
def test_a_real_gpu_raises_the_same(entry: dict[str, str]) -> None:
    if "DataParallel" in entry["write"] and torch.cuda.device_count() < 2:
        pytest.skip("nn.DataParallel checks its model on two GPUs and more")
    came = outcome(entry["write"])
    assert fits(entry["virtual"], came), came
