# batch_isend_irecv with a list of P2POp, wait for all handles
import torch
import torch.distributed as dist
from torch import Tensor


def shift(tensor: Tensor) -> Tensor:
    world = dist.get_world_size()
    received = tensor.detach().clone()
    if world > 1:
        me = dist.get_rank()
        ops = [
            dist.P2POp(dist.isend, tensor, (me + 1) % world),
            dist.P2POp(dist.irecv, received, (me + world - 1) % world),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    return received
