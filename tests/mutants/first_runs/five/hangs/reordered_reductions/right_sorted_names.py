# style: the smallest repair: sorted by name
import torch.distributed as dist
from torch import Tensor


def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    for name in sorted(tensors):
        dist.all_reduce(tensors[name])
