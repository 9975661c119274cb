"""DTensor, whose own code runs between a function that is called and the data on virtual GPUs."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from multigpu.ranks.run import run_ranks


def on_ranks():
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, randn, zeros

    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    mesh = init_device_mesh("cuda", (2,))
    rows = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)])
    assert rows.device == rows.to_local().device == torch.device("cuda", rank)
    assert rows.is_cuda
    assert not rows.is_cpu
    empty = torch.empty_like(rows.to("meta"), device="cuda")
    assert empty.to_local().device == torch.device("cuda", rank)
    assert zeros(4, 2, device_mesh=mesh, placements=[Shard(0)]).to_local().is_cuda
    with pytest.raises(RuntimeError, match=r"mixed torch.Tensor and DTensor"):
        rows + torch.ones(4, 2, device="cuda")
    whole = (rows * 2 + 1).redistribute(mesh, [Replicate()]).to_local()
    torch.manual_seed(3)
    first = randn(4, 2, device_mesh=mesh, placements=[Shard(0)])
    second = randn(4, 2, device_mesh=mesh, placements=[Shard(0)])
    torch.manual_seed(3)
    again = randn(4, 2, device_mesh=mesh, placements=[Shard(0)])
    same = randn(4, 2, device_mesh=mesh, placements=[Replicate()])
    drawn = [t.full_tensor().cpu() for t in (first, second, again)]
    return whole.cpu(), drawn, same.to_local().cpu()


@pytest.mark.slow
def test_it_is_on_the_gpus_and_draws_there() -> None:
    (whole, drawn, same), (other, _, other_same) = run_ranks(
        on_ranks, 2, gpus="virtual", show=False
    )
    assert torch.equal(whole, torch.arange(8.0).reshape(4, 2) * 2 + 1)
    assert torch.equal(whole, other)
    first, second, again = drawn
    assert torch.equal(first, again)
    assert len({*first.flatten().tolist(), *second.flatten().tolist()}) == 16  # no number twice
    assert torch.equal(same, other_same)
