# mistake: only the rank that wants to stop makes the call (hangs, or adds a flag to gradients)
import torch
import torch.distributed as dist
from torch import nn


def early_stop(model, batches, optimizer, should_stop) -> int:
    for step, (inputs, targets) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
        if should_stop(loss.item()):
            stop = torch.ones(1)
            dist.all_reduce(stop)
            return step
    return len(batches)
