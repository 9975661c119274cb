# Mistake: splits first, then each short rank repeats its own first row.
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
    mine = order[rank::world_size]
    if drop_last:
        return mine[: num_samples // world_size]
    per_rank = -(-num_samples // world_size)
    while len(mine) < per_rank:
        mine.append(mine[0] if mine else order[0])
    return mine
