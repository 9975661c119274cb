# mistake: zero_grad only before a backward: a rank without a batch sends the averaged gradient of the last step
import torch
import torch.distributed as dist
from torch import nn


def uneven_batches(model, batches, optimizer) -> None:
    steps = torch.tensor(len(batches))
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    for step in range(int(steps)):
        if step < len(batches):
            optimizer.zero_grad()
            inputs, targets = batches[step]
            nn.functional.mse_loss(model(inputs), targets).backward()
        for p in model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
