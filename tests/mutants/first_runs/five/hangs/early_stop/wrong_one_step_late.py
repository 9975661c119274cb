# mistake: the flag is sent with the next step's gradients: all stop together, but one step too late
import torch
import torch.distributed as dist
from torch import nn


def early_stop(model, batches, optimizer, should_stop) -> int:
    wish = 0
    for step, (inputs, targets) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        stop = torch.tensor(wish)
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        optimizer.step()
        if stop:
            return step
        wish = int(should_stop(loss.item()))
    return len(batches)
