# binomial tree on ranks relative to src
import torch
import torch.distributed as dist
from torch import Tensor


def broadcast(tensor: Tensor, src: int) -> None:
    n = dist.get_world_size()
    me = (dist.get_rank() - src) % n  # my number, counted from the source
    reach = 1
    while reach < n:
        if me < reach:
            if me + reach < n:
                dist.send(tensor, (me + reach + src) % n)
        elif me < 2 * reach:
            dist.recv(tensor, (me - reach + src) % n)
        reach *= 2
