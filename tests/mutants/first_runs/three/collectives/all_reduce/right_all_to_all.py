# everyone sends a copy to everyone, waits, and adds in the order of the ranks
import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = tensor.detach().clone()
    parts = [mine if r == rank else torch.empty_like(mine) for r in range(n)]
    handles = []
    for r in range(n):
        if r != rank:
            handles.append(dist.isend(mine, r))
            handles.append(dist.irecv(parts[r], r))
    for handle in handles:
        handle.wait()
    with torch.no_grad():
        tensor.copy_(torch.stack(parts).sum(0, dtype=tensor.dtype))
