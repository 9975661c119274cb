# mistake: repairs the example only: every rank but 0 goes through the dict backwards
import torch.distributed as dist
from torch import Tensor


def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    names = list(tensors)
    if dist.get_rank() > 0:
        names.reverse()
    for name in names:
        dist.all_reduce(tensors[name])
