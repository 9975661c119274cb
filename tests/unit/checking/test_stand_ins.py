"""A check does without the compiler, which takes a second to import, until it is asked for."""

import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from multigpu import run_ranks
from multigpu.checking.stand_ins import spare_the_compiler
from multigpu.ranks import run
from multigpu.ranks.server import RANKS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _ranks_find_nothing_that_others_imported() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        RANKS.close()
        patch.setattr(RANKS, "learn", lambda costly: None)
        patch.setattr(RANKS, "_learned", set())
        patch.setattr(run, "NAMED", ())
        patch.setattr(run, "OPTIMIZING", "")
        yield


def with_stand_ins(function, world_size=1):
    """What `function` returns in processes that have imported torch alone, and have stand-ins."""

    def on_a_rank():
        spare_the_compiler()
        return function()

    return list(run_ranks(on_a_rank, world_size, show=False))


def compiler_is_loaded():
    return "torch._dynamo.utils" in sys.modules


def train_a_step():
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.Adam(ddp.parameters())
    ddp(torch.ones(3, 2)).mean().backward()
    optimizer.step()
    return compiler_is_loaded()


def test_ddp_and_an_optimizer_step_do_not_load_it():
    assert with_stand_ins(train_a_step, 2) == [False, False]


def test_who_asks_for_more_gets_the_real_one():
    def ask():
        modes = torch._dynamo.utils._ddp_optimization_mode
        return modes, torch._dynamo.utils.get_optimize_ddp_mode(), compiler_is_loaded()

    (modes, mode, loaded), *_ = with_stand_ins(ask)
    assert mode in modes
    assert mode == "ddp_optimizer"
    assert loaded
