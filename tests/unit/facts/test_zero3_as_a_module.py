"""The reference Zero3 is what people copy, so it does what they expect of a module."""

import importlib.util
import io
from pathlib import Path

import torch
from torch import nn

from multigpu import run_ranks

SOLUTION = Path(__file__).parents[3] / "solutions" / "sharding.py"


def zero3_of(*, seed):
    spec = importlib.util.spec_from_file_location("sharding", SOLUTION)
    sharding = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sharding)
    torch.manual_seed(seed)
    return sharding.Zero3(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))


def step(model, optimizer):
    optimizer.zero_grad()
    loss = model(torch.arange(6.0).view(2, 3)).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss)


def test_an_optimizer_of_its_named_parameters_trains_the_shards():
    def train():
        model = zero3_of(seed=0)
        optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        losses = [step(model, optimizer), step(model, optimizer)]
        scheduler.step()
        names = {name: len(shard) for name, shard in model.named_parameters()}
        return losses[1] < losses[0], names

    shards = {"module.0.shard": 7, "module.2.shard": 4}  # 20 and 12 elements on three ranks
    assert list(run_ranks(train, 3, show=False)) == [(True, shards)] * 3


def test_its_state_is_saved_and_loaded():
    def go_on():
        first = zero3_of(seed=0)
        optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
        step(first, optimizer)
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        second = zero3_of(seed=1)
        second.load_state_dict(torch.load(file))
        others = torch.optim.SGD(second.parameters(), lr=0.1)
        return [step(first, optimizer), step(second, others)]

    for here, loaded in run_ranks(go_on, 2, show=False):
        assert here == loaded
