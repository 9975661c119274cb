# mistake: takes the total to be rank 0's number of rows times the world size
import torch
import torch.distributed as dist
from torch import nn


def weighted_average_gradients(model: nn.Module, num_samples: int) -> None:
    rows = torch.tensor(float(num_samples))
    dist.broadcast(rows, src=0)
    total = rows * dist.get_world_size()
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad *= num_samples
            dist.all_reduce(p.grad)
            p.grad /= total
