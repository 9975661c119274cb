# style: one message: concatenates in the order of the names and copies back
import torch
import torch.distributed as dist
from torch import Tensor


@torch.no_grad()
def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    if not tensors:
        return
    ordered = [tensor for _, tensor in sorted(tensors.items())]
    flat = torch.cat([tensor.reshape(-1) for tensor in ordered])
    dist.all_reduce(flat)
    for tensor, part in zip(ordered, flat.split([t.numel() for t in ordered]), strict=True):
        tensor.copy_(part.view_as(tensor))
