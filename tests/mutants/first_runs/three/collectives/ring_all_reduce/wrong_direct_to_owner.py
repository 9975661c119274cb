# every chunk goes straight to its owner and straight back: same number and size of messages, but not only neighbours talk (seen from 4 ranks on)
import torch
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = list(tensor.view(-1).tensor_split(n))
    for gap in range(1, n):
        to, come = (rank + gap) % n, (rank - gap) % n
        buffer = torch.empty_like(chunks[rank])
        handle = dist.isend(chunks[to], to)
        dist.recv(buffer, come)
        handle.wait()
        chunks[rank] += buffer
    for gap in range(1, n):
        to, come = (rank + gap) % n, (rank - gap) % n
        handle = dist.isend(chunks[rank], to)
        dist.recv(chunks[come], come)
        handle.wait()
