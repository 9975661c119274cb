# mistake: a rank without a batch skips the all-reduce of gradients that are None (hangs)
import torch
import torch.distributed as dist
from torch import nn


def uneven_batches(model, batches, optimizer) -> None:
    steps = torch.tensor(len(batches))
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    for step in range(int(steps)):
        optimizer.zero_grad()
        if step < len(batches):
            inputs, targets = batches[step]
            nn.functional.mse_loss(model(inputs), targets).backward()
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        optimizer.step()
