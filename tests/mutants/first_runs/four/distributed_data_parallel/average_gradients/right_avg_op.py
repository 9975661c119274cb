# Style: the shortest one, ReduceOp.AVG divides (gloo of torch 2.13 can do it too).
import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module) -> None:
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
