# mistake: averages the loss over ranks and asks with the mean
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
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        stop = torch.tensor(int(should_stop((mean / dist.get_world_size()).item())))
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop:
            return step
    return len(batches)
