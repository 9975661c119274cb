# mistake: sorts by the first letter only
import torch.distributed as dist
from torch import Tensor


def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    for name in sorted(tensors, key=lambda name: name[:1]):
        dist.all_reduce(tensors[name])
