# doubling tree with absolute ranks: only right for src 0, else everyone gets rank 0's numbers
import torch
import torch.distributed as dist
from torch import Tensor


def broadcast(tensor: Tensor, src: int) -> None:
    n, me = dist.get_world_size(), dist.get_rank()
    reach = 1
    while reach < n:
        if me < reach:
            if me + reach < n:
                dist.send(tensor, me + reach)
        elif me < 2 * reach:
            dist.recv(tensor, me - reach)
        reach *= 2
