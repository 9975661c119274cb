# Style: tensors only; cut or fill to a (steps, ranks) matrix and take one column.
import math

import torch


def shard_indices(
    num_samples: int,
    world_size: int,
    rank: int,
    *,
    epoch: int,
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
) -> list[int]:
    order = torch.arange(num_samples)
    if shuffle:
        order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed + epoch))
    rest = num_samples % world_size
    if rest and drop_last:
        order = order[: num_samples - rest]
    elif rest:
        need = num_samples + world_size - rest
        order = order.repeat(math.ceil(need / num_samples))[:need]
    return order.view(-1, world_size)[:, rank].tolist()
