"""On virtual GPUs DistributedDataParallel does what it does on the CPU, and fully_shard, too."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from multigpu import RankError, run_ranks
from multigpu.ranks.nccl import differences


class Branches(nn.Module):
    """A part that some batches do not use, tied weights, a buffer, a frozen parameter."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 7)
        self.norm = nn.BatchNorm1d(7)
        self.odd, self.even = nn.Linear(7, 6), nn.Linear(7, 6)
        self.tied = nn.Linear(6, 7)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(7, 7).requires_grad_(False)

    def forward(self, inputs, number=0):
        hidden = self.norm(self.first(inputs))
        hidden = (self.even if number % 2 == 0 else self.odd)(hidden.relu())
        return self.frozen(self.tied(hidden))


class Plain(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Linear(33, 5))

    def forward(self, inputs, number):
        return super().forward(inputs)


def device_of_rank(gpus):
    return torch.device("cuda", dist.get_rank()) if gpus else torch.device("cpu")


def train(gpus, options, *, model=Plain, hook=None, skip=(), join=False):
    """What a rank has after some steps of SGD with momentum; each has rows of its own."""
    device, rank = device_of_rank(gpus), dist.get_rank()
    torch.manual_seed(3)
    alone = model().to(device)
    wrapped = DistributedDataParallel(alone, device_ids=[rank] if gpus else None, **options)
    if hook is not None:
        wrapped.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    numbers = torch.Generator().manual_seed(rank)
    with wrapped.join() if join else contextlib.nullcontext():
        for step in range(4 + rank * join):
            inputs = torch.randn(4, 6, generator=numbers).to(device)
            with wrapped.no_sync() if step in skip else contextlib.nullcontext():
                wrapped(inputs, step).square().mean().backward()
            if step not in skip:
                optimizer.step()
                optimizer.zero_grad(set_to_none=step % 2 == 0)
    state = [value.detach().cpu() for value in alone.state_dict().values()]
    return state, [None if p.grad is None else p.grad.cpu() for p in alone.parameters()]


WAYS = {
    "plain": ({}, {}),
    "small buckets": ({"bucket_cap_mb": 0.0005}, {}),
    "views": ({"gradient_as_bucket_view": True}, {}),
    "unused": ({"find_unused_parameters": True}, {"model": Branches}),
    "unused views": (
        {"find_unused_parameters": True, "gradient_as_bucket_view": True},
        {"model": Branches},
    ),
    "static": ({"static_graph": True}, {}),
    "accumulated": ({}, {"skip": (0, 2)}),
    "hook": ({}, {"hook": default_hooks.fp16_compress_hook}),
    "join": ({}, {"join": True}),
}


def trained(gpus):
    return [train(gpus, options, **more) for options, more in WAYS.values()]


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def on(function, where, world=2):
    return run_ranks(function, world, where == "virtual", gpus=where, show=False)


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_it_gives_the_same_bits_with_the_same_calls(world):
    virtual, expected = on(trained, "virtual", world), on(trained, None, world)
    assert not list(differences(virtual.trace))
    for rank in range(world):
        for way, ours, theirs in zip(WAYS, virtual[rank], expected[rank], strict=True):
            assert same(ours, theirs), way
        calls = [[(c.op, c.numel) for c in run.trace.of(rank)] for run in (virtual, expected)]
        assert calls[0] == calls[1]


def leaves_a_branch_out(gpus):
    train(gpus, {}, model=Branches)


def wraps_another_shape(gpus):
    DistributedDataParallel(nn.Linear(3, 3 + dist.get_rank()).to(device_of_rank(gpus)))


@pytest.mark.parametrize("function", [leaves_a_branch_out, wraps_another_shape])
def test_it_refuses_what_it_refuses_on_the_cpu(function):
    errors = []
    for where in ("virtual", None):
        with pytest.raises(RankError) as raised:
            on(function, where)
        errors.append((raised.value.kind, str(raised.value)[:160]))
    assert errors[0] == errors[1]


def mixes_precisions(gpus):
    from torch.nn.parallel.distributed import _MixedPrecision

    model = nn.Linear(2, 2).to(device_of_rank(gpus))
    DistributedDataParallel(model, mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16))


def test_its_own_mixed_precision_is_refused_in_words():
    with pytest.raises(RankError, match=r"torch\.autocast instead"):
        on(mixes_precisions, "virtual")


def wrapped(gpus):
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(3, 2).cuda(rank), device_ids=[rank])
    inputs = torch.ones(4, 3)  # on the CPU: device_ids takes it to the GPU
    return str(model(inputs).device), sorted(model.state_dict()), type(model).__name__


def test_inputs_move_and_the_wrapper_is_pytorch_s_own():
    names = ["module.bias", "module.weight"]
    assert list(on(wrapped, "virtual")) == [
        (f"cuda:{rank}", names, "DistributedDataParallel") for rank in range(2)
    ]


def shards(gpus):
    device = device_of_rank(gpus)
    mesh = torch.distributed.init_device_mesh(device.type, (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2)).to(device)
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        inputs = torch.full((2, 5), float(step - dist.get_rank()), device=device)
        model(inputs).square().sum().backward()
        optimizer.step()
    return [parameter.full_tensor().detach().cpu() for parameter in model.parameters()]


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_fully_shard_trains_as_on_the_cpu(world):
    virtual = on(shards, "virtual", world)
    assert not list(differences(virtual.trace))
    assert same(list(virtual), list(on(shards, None, world)))
