# mistake: sends zeros for a missing gradient, but never writes the result back into such a parameter
import torch
import torch.distributed as dist
from torch import nn


def weighted_average_gradients(model: nn.Module, num_samples: int) -> None:
    total = torch.tensor(float(num_samples))
    dist.all_reduce(total)
    for p in model.parameters():
        if p.requires_grad:
            grad = torch.zeros_like(p) if p.grad is None else p.grad * num_samples
            dist.all_reduce(grad)
            if p.grad is not None:
                p.grad.copy_(grad / total)
