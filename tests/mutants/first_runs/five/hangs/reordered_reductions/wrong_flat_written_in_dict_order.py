# mistake: concatenates in sorted order but copies back in the order of the dict
import torch
import torch.distributed as dist
from torch import Tensor


def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    if not tensors:
        return
    flat = torch.cat([tensors[name].view(-1) for name in sorted(tensors)])
    dist.all_reduce(flat)
    start = 0
    for tensor in tensors.values():
        tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()
