# mistake: pads with batches of zeros, whose gradient is not zero because of the biases
import torch
import torch.distributed as dist
from torch import nn


def uneven_batches(model, batches, optimizer) -> None:
    steps = torch.tensor(len(batches))
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    shapes = [None] * dist.get_world_size()
    dist.all_gather_object(shapes, (batches[0][0].shape, batches[0][1].shape) if batches else None)
    inputs_shape, targets_shape = next((s for s in shapes if s), (None, None))
    for step in range(int(steps)):
        if step < len(batches):
            inputs, targets = batches[step]
        else:
            inputs, targets = torch.zeros(inputs_shape), torch.zeros(targets_shape)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
