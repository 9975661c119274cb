# unusual: recursion, the holder hands one half of the ranks to that half's first rank
import torch
import torch.distributed as dist
from torch import Tensor


def broadcast(tensor: Tensor, src: int) -> None:
    me = dist.get_rank()

    def spread(ranks: list[int]) -> None:
        # ranks[0] has the numbers
        if len(ranks) < 2 or me not in ranks:
            return
        middle = (len(ranks) + 1) // 2
        near, far = ranks[:middle], ranks[middle:]
        if me == near[0]:
            dist.send(tensor, far[0])
        elif me == far[0]:
            dist.recv(tensor, near[0])
        spread(near if me in near else far)

    others = [r for r in range(dist.get_world_size()) if r != src]
    spread([src, *others])
