# Mistake: every rank has its own order because the rank is in the seed; rows overlap.
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
        g = torch.Generator().manual_seed(seed + epoch + rank)
        order = torch.randperm(num_samples, generator=g).tolist()
    else:
        order = list(range(num_samples))
    n = num_samples // world_size if drop_last else -(-num_samples // world_size)
    order = (order * world_size)[: n * world_size]
    return order[rank::world_size]
