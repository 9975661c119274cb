# mistake: asks with the loss computed anew after optimizer.step()
import torch
import torch.distributed as dist
from torch import nn


def early_stop(model, batches, optimizer, should_stop) -> int:
    for step, (inputs, targets) in enumerate(batches, 1):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
        with torch.no_grad():
            loss = nn.functional.mse_loss(model(inputs), targets)
        stop = torch.tensor(int(should_stop(loss.item())))
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop:
            return step
    return len(batches)
