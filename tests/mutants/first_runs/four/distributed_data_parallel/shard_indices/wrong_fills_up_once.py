# Mistake: fills up from the beginning only once, too short where rows < ranks / 2.
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
    if shuffle:
        g = torch.Generator()
        g.manual_seed(seed + epoch)
        order = torch.randperm(num_samples, generator=g).tolist()
    else:
        order = list(range(num_samples))
    if drop_last:
        order = order[: len(order) // world_size * world_size]
    else:
        total = math.ceil(len(order) / world_size) * world_size
        order += order[: total - len(order)]
    return order[rank::world_size]
