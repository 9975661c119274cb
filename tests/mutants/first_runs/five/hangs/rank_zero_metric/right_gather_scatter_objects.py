# style: unusual: gather_object on rank 0, then scatter_object_list of the result
import torch.distributed as dist
from torch import Tensor


def rank_zero_metric(values: Tensor) -> float:
    world = dist.get_world_size()
    first = dist.get_rank() == 0
    lists = [None] * world if first else None
    dist.gather_object(values.tolist(), lists, dst=0)
    answers = None
    if first:
        everything = [x for part in lists for x in part]
        answers = [sum(everything) / len(everything)] * world
    mine = [None]
    dist.scatter_object_list(mine, answers, src=0)
    return mine[0]
