# mistake: pads to the longest length before gathering and lets the padding count
import torch
import torch.distributed as dist
from torch import Tensor


def rank_zero_metric(values: Tensor) -> float:
    longest = torch.tensor(len(values), device=values.device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    padded = values.new_zeros(int(longest))
    padded[: len(values)] = values
    dist.all_reduce(padded)
    return (padded / dist.get_world_size()).mean().item()
