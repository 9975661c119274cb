# unusual: irecv posted first, the message travels as raw bytes with a tag of its own
import torch
import torch.distributed as dist
from torch import Tensor


_TAG = 7


def _as_bytes(t: Tensor) -> Tensor:
    return t.detach().reshape(-1).view(torch.uint8)


def shift(tensor: Tensor) -> Tensor:
    result = torch.empty_like(tensor)
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return result.copy_(tensor)
    if tensor.numel() == 0:
        return result  # every rank has the same shape, nobody has anything to say
    handles = [
        dist.irecv(_as_bytes(result), src=(rank - 1) % n, tag=_TAG),
        dist.isend(_as_bytes(tensor), dst=(rank + 1) % n, tag=_TAG),
    ]
    for handle in handles:
        handle.wait()
    return result
