# Mistake: asks torch.distributed for rank and size; right only if the arguments agree with it.
import torch
import torch.distributed as dist


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
    world_size, rank = dist.get_world_size(), dist.get_rank()
    if drop_last:
        total = num_samples // world_size * world_size
    else:
        total = -(-num_samples // world_size) * world_size
    return (order * world_size)[rank:total:world_size]
