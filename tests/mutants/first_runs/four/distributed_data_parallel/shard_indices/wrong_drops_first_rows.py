# Mistake: drop_last leaves out the first rows of the order, not the last ones.
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
    extra = num_samples % world_size
    if drop_last:
        order = order[extra:]
    elif extra:
        total = num_samples + world_size - extra
        order = (order * world_size)[:total]
    return order[rank::world_size]
