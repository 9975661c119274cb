"""A run of the checks inside another program leaves that program as it was."""

import os
import sys
import types

import pytest
import torch

from multigpu.checking.catalog import Catalog
from multigpu.checking.session import check_with

from .conftest import COURSE


@pytest.fixture
def verdict(server):
    def verdict():
        (verdict,) = check_with(
            server, [Catalog(COURSE).one("split")], COURSE, submission=COURSE.solutions
        )
        return verdict

    return verdict


def test_a_refusal_writes_out_no_tensor(server, submission, monkeypatch):
    written = []
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda tensor: str(written.append(tensor)))
    (submission / "data_parallel.py").write_text("def split(batch, devices):\n    return []\n")
    split = Catalog(COURSE).one("split")
    (verdict,) = check_with(server, [split], COURSE, submission=submission)
    assert verdict.status == "wrong"
    assert not written


def test_what_the_environment_tells_pytest_is_meant_for_other_tests(verdict, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    monkeypatch.setenv("PYTEST_PLUGINS", "no_such_plugin")
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", raising=False)
    before = dict(os.environ)
    assert verdict().status == "pass"
    assert dict(os.environ) == before


def test_modules_of_another_course_are_set_aside_and_come_back(verdict, monkeypatch):
    names = ("tests.exercises", "tests.exercises.data_parallel.explain_split")
    others = {name: types.ModuleType(name) for name in names}
    for name, module in others.items():
        monkeypatch.setitem(sys.modules, name, module)
    checks = "tests.exercises.data_parallel.test_split"
    monkeypatch.delitem(sys.modules, checks, raising=False)  # pytest itself may run them here, too
    assert verdict().status == "pass"
    assert {name: sys.modules[name] for name in names} == others
    assert checks not in sys.modules
