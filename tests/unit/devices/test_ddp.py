"""On virtual GPUs DistributedDataParallel does what it does on the CPU with its reducer in C++."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
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

    def forward(self, inputs, number):
        hidden = self.norm(self.first(inputs))
        hidden = (self.even if number % 2 == 0 else self.odd)(hidden.relu())
        return self.frozen(self.tied(hidden))


def build(branches):
    torch.manual_seed(3)
    layers = (nn.Linear(6, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Linear(33, 5))
    return Branches() if branches else nn.Sequential(*layers)


def train(gpus, options, *, branches=False, hook=None, skip=(), rows=(4, 5, 3), clear=True):
    """The parameters after some steps of SGD with momentum; each rank has rows of its own."""
    rank = dist.get_rank()
    device = torch.device("cuda", rank) if gpus else torch.device("cpu")
    model = build(branches).to(device)
    wrapped = DistributedDataParallel(model, device_ids=[rank] if gpus else None, **options)
    if hook is not None:
        wrapped.register_comm_hook(None, getattr(default_hooks, hook))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    numbers = torch.Generator().manual_seed(rank)
    for step, count in enumerate(rows):
        inputs = torch.randn(count, 6, generator=numbers).to(device)
        given = (inputs, step) if branches else (inputs,)
        with wrapped.no_sync() if step in skip else contextlib.nullcontext():
            wrapped(*given).square().mean().backward()
        if step not in skip:
            optimizer.step()
            optimizer.zero_grad(set_to_none=clear)
    state = [value.detach().cpu() for value in model.state_dict().values()]
    return state, [None if p.grad is None else p.grad.cpu() for p in model.parameters()]


def on(where, world, options, **more):
    """What every rank has in the end, and the calls of each, as the operation and its size."""
    gpus = where == "virtual"
    results = run_ranks(training, world, gpus, options, more, gpus=where, show=False)
    assert not list(differences(results.trace))
    calls = [[(call.op, call.numel) for call in results.trace.of(r)] for r in range(world)]
    return list(results), calls


def training(gpus, options, more):
    return train(gpus, options, **more)


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, {}),
        ({"bucket_cap_mb": 0.0005}, {"rows": (4, 4, 4, 4, 4)}),
        ({"gradient_as_bucket_view": True}, {"clear": False}),
        ({"find_unused_parameters": True}, {"branches": True}),
        ({"find_unused_parameters": True, "gradient_as_bucket_view": True}, {"branches": True}),
        ({"static_graph": True}, {"rows": (4, 5, 3, 2)}),
        ({"broadcast_buffers": False}, {}),
        ({}, {"skip": (0, 2), "rows": (4, 5, 3, 2)}),
        ({}, {"hook": "fp16_compress_hook"}),
        ({}, {"hook": "allreduce_hook"}),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_it_gives_the_same_bits_with_the_same_calls(options, more):
    results, calls = on("virtual", 2, options, **more)
    expected, right_calls = on(None, 2, options, **more)
    assert same(results, expected)
    assert calls == right_calls


class Switch(nn.Module):
    """One of two branches, and a part that nothing uses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.one, self.other, self.idle, self.last = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, inputs, which):
        return self.last((self.one if which else self.other)(inputs))


def switches(gpus, options, plan):
    """Steps of SGD.  ``plan``: for each forward its branch, and what follows it."""
    rank = dist.get_rank()
    device = torch.device("cuda", rank) if gpus else torch.device("cpu")
    model = Switch().to(device)
    wrapped = DistributedDataParallel(model, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number, (which, then) in enumerate(plan):
        with wrapped.no_sync() if then == "accumulate" else contextlib.nullcontext():
            outputs = wrapped(torch.full((2, 4), float(rank + number % 3)).to(device), which)
            if then != "nothing":
                outputs.square().mean().backward()
        if then == "step":
            optimizer.step()
            optimizer.zero_grad()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def switched(where, options, plan):
    given = where == "virtual", options, plan
    results = run_ranks(switches, 2, *given, gpus=where, show=False)
    return list(results), [(call.op, call.numel) for call in results.trace.of(0)]


STEPS = [(True, "step")] * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "plan"),
    [
        # what was used only inside no_sync() is sent with the rest
        ({"find_unused_parameters": True}, [(True, "accumulate"), (False, "step")] * 3),
        ({"static_graph": True}, STEPS),  # parts that are never used
        ({"static_graph": True, "bucket_cap_mb": 2e-5}, STEPS),
        ({"static_graph": True}, [(True, "nothing"), *STEPS]),  # a forward without backward
        ({"find_unused_parameters": True, "bucket_cap_mb_list": [2e-5, 1e-4]}, STEPS),
        ({"static_graph": True, "bucket_cap_mb_list": [2e-5, 1e-4]}, STEPS),
    ],
    ids=str,
)
def test_parts_that_are_not_always_used(options, plan):
    (virtual, calls), (real, right_calls) = (
        switched(where, options, plan) for where in ("virtual", None)
    )
    assert same(virtual, real)
    assert same(virtual[0], virtual[1])
    assert calls == right_calls


def accumulates_first(gpus):
    switches(gpus, {"static_graph": True}, [(True, "accumulate"), *STEPS])


def test_the_first_backward_of_a_static_graph_has_to_synchronize():
    virtual, real = error_of(accumulates_first, "virtual"), error_of(accumulates_first, None)
    for each in (virtual, real):
        assert "expect_autograd_hooks_ INTERNAL ASSERT FAILED" in str(each)


def steps_in_backward(in_backward):
    from torch.distributed.optim import _apply_optimizer_in_backward

    device = torch.device("cuda", dist.get_rank())
    model = Switch().to(device)
    how = {"lr": 0.1}
    if in_backward:
        _apply_optimizer_in_backward(torch.optim.SGD, model.last.parameters(), how)
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD((model if not in_backward else model.one).parameters(), **how)
    for step in range(3):
        inputs = torch.full((2, 4), float(dist.get_rank() + step), device=device)
        wrapped(inputs, True).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def mixes_precisions(_):
    from torch.nn.parallel.distributed import _MixedPrecision

    precision = _MixedPrecision(param_dtype=torch.bfloat16)
    model = nn.Linear(2, 2).cuda(dist.get_rank())
    DistributedDataParallel(model, mixed_precision=precision)


@pytest.mark.slow
def test_an_optimizer_inside_backward_does_the_same():
    inside, after = (
        list(run_ranks(steps_in_backward, 2, each, gpus="virtual", show=False))
        for each in (True, False)
    )
    for one, other in zip(inside[0], after[0], strict=True):
        torch.testing.assert_close(one, other)


def test_its_own_mixed_precision_is_refused_in_words():
    assert "torch.autocast instead" in str(error_of(mixes_precisions, "virtual"))


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 3, 4])
def test_on_other_numbers_of_ranks(world):
    results, calls = on("virtual", world, {})
    expected, right_calls = on(None, world, {})
    assert same(results, expected)
    assert calls == right_calls


def error_of(function, where, world=2):
    with pytest.raises(RankError) as raised:
        run_ranks(function, world, where == "virtual", gpus=where, show=False)
    return raised.value


def leaves_a_branch_out(gpus):
    train(gpus, {}, branches=True)


def wraps_another_shape(gpus):
    rank = dist.get_rank()
    model = nn.Linear(3, 3 + rank).to(torch.device("cuda", rank) if gpus else "cpu")
    DistributedDataParallel(model)


@pytest.mark.parametrize("function", [leaves_a_branch_out, wraps_another_shape])
def test_it_refuses_what_it_refuses_on_the_cpu(function):
    virtual, real = error_of(function, "virtual"), error_of(function, None)
    assert virtual.kind == real.kind
    found = virtual.finding.details.get("raised", {}), real.finding.details.get("raised", {})
    texts = [each[rank]["text"][:160] for each in found for rank in sorted(each)]
    assert len(set(texts)) <= 1, texts


def joins(gpus):
    """Ranks with different numbers of batches, inside ``join()``."""
    rank = dist.get_rank()
    device = torch.device("cuda", rank) if gpus else torch.device("cpu")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(3, 2).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(2 + rank):
            optimizer.zero_grad()
            model(torch.full((2, 3), float(step + rank)).to(device)).square().mean().backward()
            optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


@pytest.mark.slow
def test_ranks_with_uneven_data_join():
    virtual = run_ranks(joins, 2, True, gpus="virtual", show=False)
    assert same(list(virtual), list(run_ranks(joins, 2, False, show=False)))


def checkpoints(gpus):
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(3, 2).cuda(rank), device_ids=[rank])
    inputs = torch.ones(4, 3)  # on the CPU: device_ids takes it to the GPU
    return str(model(inputs).device), sorted(model.state_dict()), type(model).__name__


def test_inputs_move_and_the_wrapper_is_pytorch_s_own():
    expected = [
        (f"cuda:{rank}", ["module.bias", "module.weight"], "DistributedDataParallel")
        for rank in range(2)
    ]
    assert list(run_ranks(checkpoints, 2, True, gpus="virtual", show=False)) == expected


def shards(gpus):
    from torch.distributed.fsdp import fully_shard

    rank = dist.get_rank()
    device = torch.device("cuda", rank) if gpus else torch.device("cpu")
    mesh = torch.distributed.init_device_mesh(device.type, (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2)).to(device)
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.full((2, 5), float(step - rank), device=device)).square().sum().backward()
        optimizer.step()
    return [parameter.full_tensor().detach().cpu() for parameter in model.parameters()]


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_fully_shard_trains_as_on_the_cpu(world):
    virtual = run_ranks(shards, world, True, gpus="virtual", show=False)
    assert not list(differences(virtual.trace))
    assert same(list(virtual), list(run_ranks(shards, world, False, show=False)))
