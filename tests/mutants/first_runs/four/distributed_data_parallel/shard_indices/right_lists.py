# Style: plain Python lists, repeat the order as often as needed, then a strided slice.
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
        generator = torch.Generator()
        generator.manual_seed(seed + epoch)
        order = torch.randperm(num_samples, generator=generator).tolist()
    else:
        order = list(range(num_samples))
    if drop_last:
        total = num_samples // world_size * world_size
    else:
        total = -(-num_samples // world_size) * world_size
        order = order * (-(-total // num_samples))
    return order[rank:total:world_size]
