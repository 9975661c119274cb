# style: unusual: send and recv with rank 0 as the centre
import torch
import torch.distributed as dist
from torch import Tensor


def rank_zero_metric(values: Tensor) -> float:
    mine = torch.stack([values.double().sum(), values.new_tensor(values.numel(), dtype=torch.float64)])
    ranks = range(1, dist.get_world_size())
    if dist.get_rank() == 0:
        part = torch.empty_like(mine)
        for rank in ranks:
            dist.recv(part, src=rank)
            mine += part
        for rank in ranks:
            dist.send(mine, dst=rank)
    else:
        dist.send(mine, dst=0)
        dist.recv(mine, src=0)
    return float(mine[0] / mine[1])
