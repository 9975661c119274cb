# mistake: takes rank 0's number of batches as the number of steps
import torch
import torch.distributed as dist
from torch import nn


def uneven_batches(model, batches, optimizer) -> None:
    steps = torch.tensor(len(batches))
    dist.broadcast(steps, src=0)
    for step in range(int(steps)):
        optimizer.zero_grad()
        if step < len(batches):
            inputs, targets = batches[step]
            nn.functional.mse_loss(model(inputs), targets).backward()
        for p in model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
