# Mistake: gives each rank one block of neighbours instead of every world_size-th row.
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
        total = (num_samples + world_size - 1) // world_size * world_size
    while len(order) < total:
        order += order[: total - len(order)]
    per_rank = total // world_size
    return order[rank * per_rank : (rank + 1) * per_rank]
