# mistake: the flags are summed and compared with 1: two ranks that want to stop in the same step do not stop
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
        stop = torch.tensor(1 if should_stop(loss.item()) else 0)
        dist.all_reduce(stop)
        if stop == 1:
            return step
    return len(batches)
