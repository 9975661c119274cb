# doubling tree that takes n for a power of two: log2 rounded down, ranks are left out on 3
import torch
import torch.distributed as dist
from torch import Tensor


import math


def broadcast(tensor: Tensor, src: int) -> None:
    n = dist.get_world_size()
    me = (dist.get_rank() - src) % n
    for level in range(int(math.log2(n))):
        reach = 2**level
        if me < reach:
            dist.send(tensor, (me + reach + src) % n)
        elif me < 2 * reach:
            dist.recv(tensor, (me - reach + src) % n)
