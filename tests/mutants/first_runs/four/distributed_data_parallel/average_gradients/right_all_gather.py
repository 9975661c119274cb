# Style: unusual, all_gather of everyone's gradient and a mean over the stack; None kept where nobody has one.
import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module) -> None:
    size = dist.get_world_size()
    params = [p for p in model.parameters() if p.requires_grad]
    if not params:
        return
    has = torch.tensor([p.grad is not None for p in params], dtype=torch.int64)
    has = has.to(params[0].device)
    dist.all_reduce(has, op=dist.ReduceOp.MAX)
    for p, anybody in zip(params, has.tolist(), strict=True):
        if not anybody:
            continue
        mine = torch.zeros_like(p) if p.grad is None else p.grad.detach()
        mine = mine.contiguous()
        everyone = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(everyone, mine)
        p.grad = torch.stack(everyone).sum(dim=0) / size
