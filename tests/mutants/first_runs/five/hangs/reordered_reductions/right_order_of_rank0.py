# style: rank 0 tells its order to all, then asynchronous all-reduces
import torch.distributed as dist
from torch import Tensor


def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    order = [list(tensors)]
    dist.broadcast_object_list(order, src=0)
    works = [dist.all_reduce(tensors[name], async_op=True) for name in order[0]]
    for work in works:
        work.wait()
