# Style: index arithmetic; no padded list is ever built, places wrap round with a modulo.
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
    per_rank = num_samples // world_size
    if not drop_last and num_samples % world_size:
        per_rank += 1
    places = [(rank + i * world_size) % num_samples for i in range(per_rank)]
    if not shuffle:
        return places
    perm = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed + epoch))
    return [int(perm[place]) for place in places]
