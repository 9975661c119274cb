# style: scales by this rank's share of the rows first, then asynchronous all-reduces on copies
import torch
import torch.distributed as dist
from torch import nn


@torch.no_grad()
def weighted_average_gradients(model: nn.Module, num_samples: int) -> None:
    params = [p for p in model.parameters() if p.requires_grad]
    if not params:
        return
    count = torch.tensor([float(num_samples)], dtype=torch.float64, device=params[0].device)
    dist.all_reduce(count)
    share = num_samples / count.item()
    pending = []
    for p in params:
        buffer = torch.zeros_like(p, memory_format=torch.contiguous_format)
        if p.grad is not None:
            buffer.copy_(p.grad).mul_(share)
        pending.append((p, buffer, dist.all_reduce(buffer, async_op=True)))
    for p, buffer, work in pending:
        work.wait()
        p.grad = buffer
