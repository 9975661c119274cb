# mistake: a rank that has run out uses its batches again, so its gradient is not zero
import torch
import torch.distributed as dist
from torch import nn


def uneven_batches(model, batches, optimizer) -> None:
    steps = torch.tensor(len(batches))
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    for step in range(int(steps)):
        optimizer.zero_grad()
        if len(batches):
            inputs, targets = batches[step % len(batches)]
            nn.functional.mse_loss(model(inputs), targets).backward()
        for p in model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
