# mistake: reduces a concatenated copy and never writes it back
import torch
import torch.distributed as dist
from torch import Tensor


def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    if tensors:
        flat = torch.cat([tensors[name].view(-1) for name in sorted(tensors)])
        dist.all_reduce(flat)
