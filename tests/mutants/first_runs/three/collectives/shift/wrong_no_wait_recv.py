# waits for the send, but not for the irecv: may return before the numbers are there
import torch
import torch.distributed as dist
from torch import Tensor


def shift(tensor: Tensor) -> Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return tensor.clone()
    result = torch.zeros_like(tensor)
    dist.irecv(result, (rank - 1) % n)
    dist.isend(tensor, (rank + 1) % n).wait()
    return result
