# mistake: a majority of ranks must want to stop: sum of flags against more than half of the ranks
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
        stop = torch.tensor(int(should_stop(loss.item())))
        dist.all_reduce(stop)
        if stop // max(1, dist.get_world_size() // 2 + 1):
            return step
    return len(batches)
