# Mistake: list(tensor) gives 0-d tensors, not Python integers.
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
        order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed + epoch))
    else:
        order = torch.arange(num_samples)
    if drop_last:
        order = order[: num_samples // world_size * world_size]
    else:
        total = -(-num_samples // world_size) * world_size
        order = order.repeat(world_size)[:total]
    return list(order[rank::world_size])
