# mistake: sorts without regard to case: "Loss" and "loss" tie and keep the order of the dict
import torch.distributed as dist
from torch import Tensor


def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    for name in sorted(tensors, key=str.lower):
        dist.all_reduce(tensors[name])
