# style: plain loop: weight by rows, sum over ranks, divide by the total number of rows
import torch
import torch.distributed as dist
from torch import nn


def weighted_average_gradients(model: nn.Module, num_samples: int) -> None:
    device = next(model.parameters()).device
    total = torch.tensor(num_samples, dtype=torch.int64, device=device)
    dist.all_reduce(total)
    total = total.item()
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= num_samples
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        parameter.grad /= total
