# for fewer elements than ranks 'not worth it': returns without adding
import torch
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return
    if tensor.numel() < n:
        return
    chunks = list(tensor.view(-1).tensor_split(n))

    def exchange(outgoing: int) -> tuple[int, Tensor]:
        into = (outgoing - 1) % n
        buffer = torch.empty_like(chunks[into])
        handle = dist.isend(chunks[outgoing], (rank + 1) % n)
        dist.recv(buffer, (rank - 1) % n)
        handle.wait()
        return into, buffer

    for step in range(n - 1):
        into, buffer = exchange((rank - step) % n)
        chunks[into] += buffer
    for step in range(n - 1):
        into, buffer = exchange((rank + 1 - step) % n)
        chunks[into].copy_(buffer)
