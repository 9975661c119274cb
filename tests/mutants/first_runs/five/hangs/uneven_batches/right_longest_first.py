# style: agrees on the longest list first, then a plain loop; divides by all ranks
import torch
import torch.distributed as dist
from torch import nn


def uneven_batches(model, batches, optimizer) -> None:
    parameters = list(model.parameters())
    steps = torch.tensor(len(batches), device=parameters[0].device)
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    for step in range(int(steps)):
        optimizer.zero_grad()
        if step < len(batches):
            inputs, targets = batches[step]
            nn.functional.mse_loss(model(inputs), targets).backward()
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
