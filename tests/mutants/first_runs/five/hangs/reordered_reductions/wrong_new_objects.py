# mistake: sums clones and puts new tensors into the dict: not the same objects
import torch.distributed as dist
from torch import Tensor


def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    for name in sorted(tensors):
        total = tensors[name].clone()
        dist.all_reduce(total)
        tensors[name] = total
