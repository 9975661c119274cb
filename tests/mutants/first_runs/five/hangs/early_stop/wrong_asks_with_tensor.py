# mistake: gives should_stop a tensor instead of a Python float
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
        stop = torch.tensor(int(should_stop(loss.detach())))
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop:
            return step
    return len(batches)
