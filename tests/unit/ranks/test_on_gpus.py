"""Ranks on real GPUs: NCCL with a GPU for each rank, and gloo where ranks share one."""

import pytest
import torch
import torch.distributed as dist
from nvitop import Device
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from multigpu import run_ranks
from multigpu.ranks import rank_device

pytestmark = pytest.mark.gpu


def worlds():
    """Of NCCL, and of gloo on GPUs that ranks share."""
    return torch.cuda.device_count(), torch.cuda.device_count() + 1


def test_the_driver_can_be_asked_inside_a_rank():
    assert run_ranks(Device.count, 2, show=False) == [torch.cuda.device_count()] * 2


def two_steps():
    torch.manual_seed(0)
    device = rank_device()
    model = nn.Linear(3, 2).to(device)
    parallel = DistributedDataParallel(model, device_ids=[device.index])
    for step in range(2):
        inputs = torch.full((4, 3), float(dist.get_rank() + step), device=device)
        parallel(inputs).sum().backward()
    return model.weight.grad.cpu(), dist.get_backend()


def test_the_gradients_of_ddp_are_averaged_and_recorded_with_the_line_of_backward():
    nccl, gloo = worlds()
    for world, backend in ((nccl, "nccl"), (gloo, "gloo")):
        results = run_ranks(two_steps, world, show=False)
        mean_of_inputs = sum(range(world)) / world
        expected = torch.full((2, 3), 4 * (2 * mean_of_inputs + 1))
        for gradient, used in results:
            assert used == backend
            torch.testing.assert_close(gradient, expected)
        for rank in range(world):
            reductions = [
                call
                for call in results.trace.collectives(rank)
                if call.op == "all_reduce" and call.via == "DistributedDataParallel"
            ]
            assert len(reductions) == 2
            assert {call.function for call in reductions} == {"two_steps"}
            assert {call.bytes for call in reductions} == {4 * (2 * 3 + 2)}


def adds_up_everywhere(backend):
    dist.init_process_group(backend)
    totals = []
    for device in ("cpu", rank_device()):
        total = torch.ones(2, device=device)
        dist.all_reduce(total)
        totals.append(total.tolist())
    dist.destroy_process_group()
    return totals


@pytest.mark.parametrize("backend", [None, "cpu:gloo,cuda:nccl"])
def test_a_program_that_names_no_backend_has_one_for_each_device(backend):
    world = torch.cuda.device_count()
    results = run_ranks(adds_up_everywhere, world, backend, show=False)
    assert results == [[[world] * 2] * 2] * world
    for rank in range(world):
        assert [c.op for c in results.trace.collectives(rank)].count("all_reduce") == 2
