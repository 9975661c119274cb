# style: unusual: votes as Python objects, gathered between forward and backward
import torch.distributed as dist
from torch import nn


def early_stop(model, batches, optimizer, should_stop) -> int:
    world = dist.get_world_size()
    votes = [False] * world
    step = 0
    while step < len(batches) and not any(votes):
        inputs, targets = batches[step]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        votes = [None] * world
        dist.all_gather_object(votes, bool(should_stop(loss.item())))
        (loss / world).backward()
        works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
        for work in works:
            work.wait()
        optimizer.step()
        step += 1
    return step
