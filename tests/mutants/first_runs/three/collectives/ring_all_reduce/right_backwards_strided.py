# unusual: the ring turns the other way (to rank - 1), and chunk i is every n-th element from i on
import torch
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    flat = tensor.view(-1)
    chunks = [flat[i::n] if i < flat.numel() else flat[:0] for i in range(n)]
    for step in range(2 * (n - 1)):
        out, into = chunks[(rank + step) % n], chunks[(rank + step + 1) % n]
        message, arriving = out.contiguous(), into.new_empty(into.shape)
        sending = dist.isend(message, (rank - 1) % n) if message.numel() else None
        if arriving.numel():
            dist.irecv(arriving, (rank + 1) % n).wait()
        if sending:
            sending.wait()
        if step < n - 1:
            into.add_(arriving)
        else:
            into.copy_(arriving)
