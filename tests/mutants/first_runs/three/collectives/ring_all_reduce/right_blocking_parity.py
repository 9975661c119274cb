# only blocking send and recv: even ranks send first, odd ranks receive first
import torch
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    flat = tensor.reshape(-1)  # a view: the tensor is contiguous
    cuts = [flat.numel() * i // n for i in range(n + 1)]

    def chunk(index: int) -> Tensor:
        index %= n
        return flat[cuts[index] : cuts[index + 1]]

    def swap(outgoing: Tensor, incoming: Tensor) -> None:
        if rank % 2 == 0:
            dist.send(outgoing, (rank + 1) % n)
            dist.recv(incoming, (rank - 1) % n)
        else:
            dist.recv(incoming, (rank - 1) % n)
            dist.send(outgoing, (rank + 1) % n)

    for step in range(n - 1):
        mine = chunk(rank - step - 1)
        incoming = torch.empty_like(mine)
        swap(chunk(rank - step), incoming)
        mine += incoming
    for step in range(n - 1):
        swap(chunk(rank - step + 1), chunk(rank - step))
