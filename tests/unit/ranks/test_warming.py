"""What takes a second to import is imported once, by the server, and not in each rank."""

import subprocess
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from multigpu import run_ranks
from multigpu.ranks import run
from multigpu.ranks.server import Server
from multigpu.ranks.warming import NAMED

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _a_server_that_has_imported_torch_alone(monkeypatch):
    """A new one: that of this process knows what the ranks of earlier tests have imported."""
    server = Server("multigpu.ranks.rank")
    monkeypatch.setattr(server, "learn", lambda costly: None)
    monkeypatch.setattr(run, "RANKS", server)
    monkeypatch.setattr(run, "NAMED", ())
    yield
    server.close()


def test_what_the_caller_has_imported_a_rank_finds_imported(monkeypatch):
    def found():
        return "torch.distributed.optim" in sys.modules

    assert list(run_ranks(found, 1, show=False)) == [False]
    monkeypatch.setattr(run, "NAMED", NAMED)
    monkeypatch.setitem(sys.modules, "torch.distributed.optim", torch.optim)  # as if it had
    assert list(run_ranks(found, 1, show=False)) == [True]


def compiler():
    return sys.modules.get("torch._dynamo")


def test_a_rank_that_trains_has_torch_s_own_compiler_from_the_start():
    """torch remembers what it is told at an optimizer's first step, for a later torch.compile."""

    def train():
        early = compiler()
        ddp = DistributedDataParallel(nn.Linear(2, 1))
        optimizer = torch.optim.Adam(ddp.parameters())
        ddp(torch.ones(3, 2)).mean().backward()
        optimizer.step()
        return type(early) is types.ModuleType, early is compiler(), bool(compiler().__file__)

    assert list(run_ranks(train, 2, show=False)) == [(True, True, True)] * 2


def test_a_rank_that_does_not_train_does_without_it(tmp_path):
    """In a process of its own: once ranks have trained, those of later runs have it, too."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from multigpu import run_ranks\n"
        "without = run_ranks(lambda: 'torch._dynamo' not in sys.modules, 2, show=False)\n"
        "sys.exit(list(without) != [True, True])\n"
    )
    subprocess.run([sys.executable, program], check=True)
