# pads to n equal rows, and moves rows with shift; copies the sum back at the end
import torch
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return
    size = tensor.numel()
    rows = tensor.new_zeros(n, (size + n - 1) // n)
    rows.view(-1)[:size] = tensor.reshape(-1)

    moving = rows[rank].clone()
    for step in range(1, n):
        moving = shift(moving) + rows[(rank - step) % n]
    # moving is the finished row (rank + 1) % n
    rows[(rank + 1) % n] = moving
    for step in range(n - 1):
        moving = shift(moving)
        rows[(rank - step) % n] = moving
    tensor.copy_(rows.view(-1)[:size].view(tensor.shape))
