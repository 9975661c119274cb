"""Answers to ``broadcast`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from torch import Tensor


def others(src):
    return [rank for rank in range(dist.get_world_size()) if rank != src]


# %% a_tree: pass


def broadcast(tensor, src):
    size = dist.get_world_size()
    place = (dist.get_rank() - src) % size
    reached = 1
    while reached < size:
        if place < reached and place + reached < size:
            dist.send(tensor, (place + reached + src) % size)
        elif reached <= place < 2 * reached:
            dist.recv(tensor, (place - reached + src) % size)
        reached *= 2


# %% in_a_batch: pass


def broadcast(tensor, src):
    if dist.get_rank() == src:
        ops = [dist.P2POp(dist.isend, tensor, rank) for rank in others(src)]
    else:
        ops = [dist.P2POp(dist.irecv, tensor, src)]
    for handle in dist.batch_isend_irecv(ops) if ops else []:
        handle.wait()


# %% over_rank_zero: pass


def broadcast(tensor, src):
    if src != 0:
        if dist.get_rank() == src:
            dist.send(tensor, 0)
        elif dist.get_rank() == 0:
            dist.recv(tensor, src)
    if dist.get_rank() == 0:
        for rank in range(1, dist.get_world_size()):
            if rank != src:
                dist.send(tensor, rank)
    elif dist.get_rank() != src:
        dist.recv(tensor, 0)


# %% three_chain: pass

# a chain from src around the ring, via a buffer and copy_


@torch.no_grad()
def broadcast(tensor: Tensor, src: int) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank != src:
        buffer = torch.empty_like(tensor)
        dist.recv(buffer, src=(rank - 1) % n)
        tensor.copy_(buffer)
    if (rank + 1) % n != src:
        dist.send(tensor, dst=(rank + 1) % n)


# %% three_recursive_halves: pass

# unusual: recursion, the holder hands one half of the ranks to that half's first rank


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


# %% three_star: pass

# the source sends to everyone in turn, the others receive


def broadcast(tensor: Tensor, src: int) -> None:
    if dist.get_rank() == src:
        for dst in range(dist.get_world_size()):
            if dst != src:
                dist.send(tensor, dst)
    else:
        dist.recv(tensor, src)


# %% three_star_isend: pass

# the source starts all isends at once, then waits for all of them


def broadcast(tensor: Tensor, src: int) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank == src:
        handles = [dist.isend(tensor, dst=r) for r in range(n) if r != src]
    else:
        handles = [dist.irecv(tensor, src=src)]
    for handle in handles:
        handle.wait()


# %% three_tree: pass

# binomial tree on ranks relative to src


def broadcast(tensor: Tensor, src: int) -> None:
    n = dist.get_world_size()
    me = (dist.get_rank() - src) % n  # my number, counted from the source
    reach = 1
    while reach < n:
        if me < reach:
            if me + reach < n:
                dist.send(tensor, (me + reach + src) % n)
        elif me < 2 * reach:
            dist.recv(tensor, (me - reach + src) % n)
        reach *= 2


# %% three_via_shift: pass

# unusual: n - 1 rounds of shift; every rank takes the one that comes from src


def broadcast(tensor: Tensor, src: int) -> None:
    n, rank = dist.get_world_size(), dist.get_rank()
    travelling = tensor.detach().clone()
    for step in range(1, n):
        travelling = shift(travelling)
        if (rank - step) % n == src:
            with torch.no_grad():
                tensor.copy_(travelling)


# %% rebinds: wrong returned_not_in_place


def broadcast(tensor, src):
    if dist.get_rank() == src:
        for rank in others(src):
            dist.send(tensor, rank)
    else:
        arrived = torch.empty_like(tensor)
        dist.recv(arrived, src)
        tensor = arrived
    return tensor


# %% replaces_data: wrong other_memory


def broadcast(tensor, src):
    if dist.get_rank() == src:
        for rank in others(src):
            dist.send(tensor, rank)
    else:
        arrived = torch.empty_like(tensor)
        dist.recv(arrived, src)
        tensor.data = arrived


# %% leaves_the_last_rank_out: hang deadlock


def broadcast(tensor, src):
    if dist.get_rank() == src:
        for rank in range(dist.get_world_size() - 1):
            if rank != src:
                dist.send(tensor, rank)
    else:
        dist.recv(tensor, src)


# %% throws_the_handles_away: wrong broadcast.not_waited


def broadcast(tensor, src):
    if dist.get_rank() == src:
        for rank in others(src):
            dist.isend(tensor, rank)
    else:
        dist.recv(tensor, src)


# %% receives_into_a_buffer_of_a_fixed_size: wrong mismatch


def broadcast(tensor, src):
    if dist.get_rank() == src:
        for rank in others(src):
            dist.send(tensor.view(-1), rank)
    else:
        arrived = torch.empty(64, dtype=tensor.dtype)[: tensor.numel()]
        dist.recv(arrived, src)
        tensor.copy_(arrived.view(tensor.shape))


# %% calls_the_real_one: wrong refused_name


def broadcast(tensor, src):
    dist.broadcast(tensor, src)


# %% three_only_higher_ranks: hang deadlock

# loops over range(src + 1, n): ranks below src wait for ever (right for src 0)


def broadcast(tensor: Tensor, src: int) -> None:
    if dist.get_rank() == src:
        for dst in range(src + 1, dist.get_world_size()):
            dist.send(tensor, dst)
    else:
        dist.recv(tensor, src)
