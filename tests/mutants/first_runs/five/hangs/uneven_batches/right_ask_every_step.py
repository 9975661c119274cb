# style: asks before every step who still has a batch; divides by the ranks that have one
import torch
import torch.distributed as dist
from torch import nn


def uneven_batches(model, batches, optimizer) -> None:
    iterator = iter(batches)
    device = next(model.parameters()).device
    while True:
        batch = next(iterator, None)
        active = torch.tensor(float(batch is not None), device=device)
        dist.all_reduce(active)
        if active == 0:
            return
        optimizer.zero_grad(set_to_none=False)
        if batch is not None:
            inputs, targets = batch
            nn.functional.mse_loss(model(inputs), targets).backward()
        for p in model.parameters():
            grad = p.grad if p.grad is not None else torch.zeros_like(p)
            dist.all_reduce(grad)
            p.grad = grad / active
        optimizer.step()
