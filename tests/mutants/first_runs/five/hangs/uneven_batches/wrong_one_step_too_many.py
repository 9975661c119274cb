# mistake: one more step at the end with zero gradients, which moves the weights where there is momentum
import torch
import torch.distributed as dist
from torch import nn


def uneven_batches(model, batches, optimizer) -> None:
    step = 0
    go_on = True
    while go_on:
        active = torch.tensor(float(step < len(batches)))
        dist.all_reduce(active)
        go_on = active.item() > 0
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
        step += 1
