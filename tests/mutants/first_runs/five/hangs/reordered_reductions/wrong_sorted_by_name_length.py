# mistake: sorts names by length; names of the same length keep the order of the dict
import torch.distributed as dist
from torch import Tensor


def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    for name in sorted(tensors, key=len):
        dist.all_reduce(tensors[name])
