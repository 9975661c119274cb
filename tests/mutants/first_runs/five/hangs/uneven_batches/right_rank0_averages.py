# style: unusual: counts as objects, zero loss for missing batches, reduce to rank 0 and broadcast of the mean
import itertools

import torch.distributed as dist
from torch import nn


def _loss(model, batch):
    if batch is None:
        return sum((p * 0).sum() for p in model.parameters())
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def uneven_batches(model, batches, optimizer) -> None:
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, len(batches))
    padded = itertools.islice(itertools.chain(batches, itertools.repeat(None)), max(counts))
    for step, batch in enumerate(padded):
        active = sum(count > step for count in counts)
        optimizer.zero_grad()
        _loss(model, batch).backward()
        for p in model.parameters():
            dist.reduce(p.grad, dst=0)
            p.grad.div_(active)
            dist.broadcast(p.grad, src=0)
        optimizer.step()
