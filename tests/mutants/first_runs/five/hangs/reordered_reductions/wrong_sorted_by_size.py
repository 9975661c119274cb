# mistake: sorts by the number of values; ties keep the order of the dict
import torch.distributed as dist
from torch import Tensor


def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    for tensor in sorted(tensors.values(), key=Tensor.numel):
        dist.all_reduce(tensor)
