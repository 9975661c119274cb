"""nn.SyncBatchNorm over ranks does what nn.BatchNorm does with all rows in one process."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from multigpu.ranks.run import run_ranks

ROWS = (3, 5)  # of each rank


def images() -> torch.Tensor:
    return torch.randn(sum(ROWS), 4, 2, 3, generator=torch.Generator().manual_seed(0)) * 3 + 1


def passed(norm, rows, device):
    """Output, gradient of the rows, gradients of the parameters and running statistics."""
    rows = rows.to(device).requires_grad_()
    norm = norm.to(device)
    out = norm(rows)
    (out.square() * rows.detach().sin()).sum().backward()
    return [
        tensor.detach().cpu()
        for tensor in (out, rows.grad, norm.weight.grad, norm.bias.grad, *norm.buffers())
    ]


def batch_norm() -> nn.Module:
    torch.manual_seed(1)
    norm = nn.BatchNorm2d(4)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


def part():
    rank = dist.get_rank()
    norm = nn.SyncBatchNorm.convert_sync_batchnorm(batch_norm())
    rows = images().split(ROWS)[rank]
    first = passed(norm, rows, f"cuda:{rank}")
    half = norm(rows.cuda(rank).half()).dtype
    norm.eval()
    return [*first, half, norm(rows.cuda(rank)).cpu().detach()]


@pytest.mark.slow
def test_it_agrees_with_batch_norm() -> None:
    norm = batch_norm()
    out, grad, weight, bias, *buffers = passed(norm, images(), "cpu")
    parts = list(run_ranks(part, 2, gpus="virtual", show=False))
    torch.testing.assert_close(torch.cat([p[0] for p in parts]), out)
    torch.testing.assert_close(torch.cat([p[1] for p in parts]), grad)
    torch.testing.assert_close(sum(p[2] for p in parts), weight)
    torch.testing.assert_close(sum(p[3] for p in parts), bias)
    for one in parts:
        torch.testing.assert_close(one[4:7], buffers)
        assert one[7] is torch.float16
