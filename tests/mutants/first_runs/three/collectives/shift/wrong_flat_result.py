# flattens for sending and forgets to restore the shape (only 1-d tensors are right)
import torch
import torch.distributed as dist
from torch import Tensor


def shift(tensor: Tensor) -> Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return tensor.clone()
    flat = tensor.reshape(-1)
    result = torch.empty_like(flat)
    ops = [dist.P2POp(dist.isend, flat, (rank + 1) % n), dist.P2POp(dist.irecv, result, (rank - 1) % n)]
    for handle in dist.batch_isend_irecv(ops):
        handle.wait()
    return result
