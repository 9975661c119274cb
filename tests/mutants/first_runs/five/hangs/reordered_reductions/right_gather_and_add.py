# style: unusual: gathers the dicts as objects and adds by name, reverse order for no reason
import torch
import torch.distributed as dist
from torch import Tensor


def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {name: t.detach().cpu() for name, t in tensors.items()})
    with torch.no_grad():
        for name in reversed(sorted(tensors)):
            result = everyone[0][name].clone()
            for other in everyone[1:]:
                result += other[name]
            tensors[name].copy_(result)
