# Mistake: fills up with rows 0, 1, 2, ... instead of the beginning of the shuffled order.
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
        total = num_samples // world_size * world_size
    else:
        total = -(-num_samples // world_size) * world_size
    order += [i % num_samples for i in range(total - num_samples)]
    return order[rank:total:world_size]
