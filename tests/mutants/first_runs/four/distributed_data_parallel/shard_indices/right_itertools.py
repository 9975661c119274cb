# Style: lazy iterators, cycle and islice.
from itertools import cycle, islice

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
        rng = torch.Generator()
        rng.manual_seed(seed + epoch)
        order = torch.randperm(num_samples, generator=rng).tolist()
    else:
        order = range(num_samples)
    rounds, left = divmod(num_samples, world_size)
    rounds += bool(left) and not drop_last
    return list(islice(cycle(order), rank, rounds * world_size, world_size))
