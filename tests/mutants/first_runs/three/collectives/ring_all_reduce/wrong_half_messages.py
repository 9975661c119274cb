# both directions at once with half chunks: only neighbours, right sum, but 4 (n - 1) messages
import torch
import torch.distributed as dist
from torch import Tensor


def _ring(flat: Tensor, way: int) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = list(flat.tensor_split(n))
    for step in range(2 * (n - 1)):
        out, into = (rank - way * step) % n, (rank - way * (step + 1)) % n
        buffer = torch.empty_like(chunks[into])
        handle = dist.isend(chunks[out], (rank + way) % n)
        dist.recv(buffer, (rank - way) % n)
        handle.wait()
        if step < n - 1:
            chunks[into].add_(buffer)
        else:
            chunks[into].copy_(buffer)


def ring_all_reduce(tensor: Tensor) -> None:
    first, second = tensor.view(-1).tensor_split(2)
    _ring(first, 1)
    _ring(second, -1)
