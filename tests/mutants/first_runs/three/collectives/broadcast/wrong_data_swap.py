# tensor.data = ...: the object has the new numbers, but other memory; views see the old ones
import torch
import torch.distributed as dist
from torch import Tensor


def broadcast(tensor: Tensor, src: int) -> None:
    if dist.get_rank() == src:
        for dst in range(dist.get_world_size()):
            if dst != src:
                dist.send(tensor, dst)
    else:
        received = torch.empty_like(tensor)
        dist.recv(received, src)
        tensor.data = received
