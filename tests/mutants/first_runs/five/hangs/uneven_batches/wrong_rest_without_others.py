# mistake: averages over the steps that all share, then the ranks with more batches train on alone
import torch
import torch.distributed as dist
from torch import nn


def uneven_batches(model, batches, optimizer) -> None:
    common = torch.tensor(len(batches))
    dist.all_reduce(common, op=dist.ReduceOp.MIN)
    for step, (inputs, targets) in enumerate(batches):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        if step < int(common):
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        optimizer.step()
