# mistake: stops after the shortest list, so batches are left out
import torch
import torch.distributed as dist
from torch import nn


def uneven_batches(model, batches, optimizer) -> None:
    steps = torch.tensor(len(batches))
    dist.all_reduce(steps, op=dist.ReduceOp.MIN)
    for inputs, targets in batches[: int(steps)]:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
