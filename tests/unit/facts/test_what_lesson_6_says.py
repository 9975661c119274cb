"""What lesson 6 says of DistributedDataParallel, as far as its own cells do not show it.

The outputs of the cells are recorded, and tests/site/test_fresh_runs.py compares them with a new
run: what the constructor, a forward and a backward send, the mean, `no_sync`, uneven inputs.
"""

import importlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from multigpu import run_ranks
from multigpu.ranks import span


def ran(function):
    return run_ranks(function, 2, backend="gloo", show=False)


def test_weights_that_differ_after_wrapping_stay_different_and_nothing_complains():
    def drift():
        ddp = DistributedDataParallel(nn.Linear(1, 1))
        with torch.no_grad():
            ddp.module.weight += 100 * dist.get_rank()
        for _ in range(3):
            ddp(torch.ones(3, 1)).mean().backward()
            torch.optim.SGD(ddp.parameters(), lr=1e-3).step()
        return ddp.module.weight.item()

    low, high = ran(drift)
    assert high - low == pytest.approx(100, abs=1e-3)


def test_a_complete_bucket_leaves_during_backward():
    def last_gradient(_):
        with span("last gradient"):
            pass

    def two_steps():  # in the second step a bucket closes when it has passed 1 MiB
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(3)))
        model[0].bias.register_hook(last_gradient)
        ddp = DistributedDataParallel(model)
        for _ in range(2):
            ddp(torch.rand(8, 512)).mean().backward()

    trace = ran(two_steps).trace
    reductions = [call for call in trace.of(0) if call.op == "all_reduce"]
    layer = 4 * (512 * 512 + 512)
    assert [call.bytes for call in reductions] == [3 * layer, layer, 2 * layer]
    assert {call.via for call in trace.of(0)} == {"DistributedDataParallel"}
    _, computed = (each.start for each in trace.spans if each.rank == 0)
    assert reductions[1].time < computed < reductions[2].time


def test_find_unused_parameters_adds_one_small_call_and_never_rebuilds_the_buckets():
    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(16, 1), nn.Linear(16, 1)

        def forward(self, rows):
            return self.used(rows)

    def two_steps():
        ddp = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
        for _ in range(2):
            ddp.zero_grad()
            with span("step"):
                ddp(torch.full((2, 16), dist.get_rank() + 1.0)).mean().backward()
        return ddp.module.used.weight.grad[0, 0].item()

    results = ran(two_steps)
    assert list(results) == [1.5, 1.5]
    first = min(part.start for part in results.trace.spans)
    steps = [call for call in results.trace.of(0) if call.time > first]
    one_step = [("all_reduce", "float32"), ("all_reduce", "int32")]
    assert sorted((call.op, call.dtype) for call in steps) == sorted(2 * one_step)


def test_gradients_of_no_sync_add_up_and_are_not_divided():
    def accumulate():
        ddp = DistributedDataParallel(nn.Linear(2, 1))
        rows = torch.full((3, 2), dist.get_rank() + 1.0)
        with ddp.no_sync():
            for _ in range(3):
                ddp(rows).mean().backward()
        ddp(rows).mean().backward()
        return ddp.module.weight.grad[0, 0].item()

    assert list(ran(accumulate)) == [4 * 1.5, 4 * 1.5]


def test_join_can_divide_by_the_ranks_that_are_left():
    def uneven():
        ddp = DistributedDataParallel(nn.Linear(2, 1))
        with ddp.join(divide_by_initial_world_size=False):
            for _ in range(2 + dist.get_rank()):
                ddp.zero_grad()
                ddp(torch.ones(3, 2)).mean().backward()
        return ddp.module.weight.grad[0, 0].item()

    assert list(ran(uneven)) == [1.0, 1.0]


def test_the_sampler_strides_and_repeats_rows_from_the_start():
    in_order = [list(DistributedSampler(range(768), 5, rank, shuffle=False)) for rank in range(5)]
    assert in_order[1][:3] == [1, 6, 11]
    assert [in_order[3][-1], in_order[4][-1]] == [0, 1]


def test_torch_distributed_launch_is_deprecated_for_torchrun():
    launch = importlib.import_module("torch.distributed.launch")
    assert "Use torchrun" in launch.main.__deprecated__
