# Mistake: world_size - n % world_size pads a whole extra round when it divides evenly.
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
        order = order[: num_samples - extra]
    else:
        missing = world_size - extra
        order = (order * (missing // num_samples + 2))[: num_samples + missing]
    return order[rank::world_size]
