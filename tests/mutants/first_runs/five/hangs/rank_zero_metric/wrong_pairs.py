# mistake: rank 0 talks to rank 1 only: right on 2 ranks, wrong on 3
import torch
import torch.distributed as dist
from torch import Tensor


def rank_zero_metric(values: Tensor) -> float:
    total = torch.stack([values.sum(), values.new_tensor(len(values))])
    other = torch.zeros_like(total)
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank ^ 1 < world:
        if rank % 2 == 0:
            dist.send(total, rank ^ 1)
            dist.recv(other, rank ^ 1)
        else:
            dist.recv(other, rank ^ 1)
            dist.send(total, rank ^ 1)
    total += other
    return (total[0] / total[1]).item()
