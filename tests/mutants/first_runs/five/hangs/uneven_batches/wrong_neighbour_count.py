# mistake: compares its number of batches with one neighbour's only: right on 2 ranks, not on 3
import torch
import torch.distributed as dist
from torch import nn


def uneven_batches(model, batches, optimizer) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = torch.tensor([len(batches)])
    other = mine.clone()
    if world > 1:
        work = dist.isend(mine, (rank + 1) % world)
        dist.recv(other, (rank - 1) % world)
        work.wait()
    for step in range(max(int(mine), int(other))):
        optimizer.zero_grad()
        if step < len(batches):
            inputs, targets = batches[step]
            nn.functional.mse_loss(model(inputs), targets).backward()
        for p in model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()
