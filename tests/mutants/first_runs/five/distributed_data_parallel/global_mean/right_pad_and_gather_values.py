# style: unusual: gathers the values themselves, padded to the longest, and takes their mean locally
import torch
import torch.distributed as dist
from torch import Tensor


def global_mean(values: Tensor) -> float:
    world = dist.get_world_size()
    flat = values.detach().reshape(-1).to(torch.float64)
    length = torch.tensor([flat.numel()], device=values.device)
    lengths = [torch.empty_like(length) for _ in range(world)]
    dist.all_gather(lengths, length)
    lengths = [int(n) for n in lengths]
    longest = max(lengths)
    if longest == 0:
        return float("nan")
    padded = flat.new_zeros(longest)
    padded[: flat.numel()] = flat
    rows = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(rows, padded)
    return torch.cat([row[:n] for row, n in zip(rows, lengths)]).mean().item()
