"""Answers to ``all_reduce`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from torch import Tensor


def ranks():
    return range(dist.get_world_size())


def others():
    return [rank for rank in ranks() if rank != dist.get_rank()]


def exchanged(tensor):
    """Own tensor and everybody else's, by rank."""
    held = {dist.get_rank(): tensor.clone()}
    handles = [dist.isend(held[dist.get_rank()], rank) for rank in others()]
    for rank in others():
        held[rank] = torch.empty_like(tensor)
        handles.append(dist.irecv(held[rank], rank))
    for handle in handles:
        handle.wait()
    return held


def one_message_around(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    if size > 1:
        handle = dist.isend(tensor.clone(), (rank + 1) % size)
        dist.recv(torch.empty_like(tensor), (rank - 1) % size)
        handle.wait()


# %% in_chunks: pass


def all_reduce(tensor):
    ring_all_reduce(tensor)


# %% a_chain_and_back: pass


def all_reduce(tensor):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if rank > 0:
        arrived = torch.zeros_like(tensor)
        dist.recv(arrived, rank - 1)
        tensor.add_(arrived)
    if rank < last:
        dist.send(tensor, rank + 1)
        dist.recv(tensor, rank + 1)
    if rank > 0:
        dist.send(tensor, rank - 1)
    return tensor


# %% doubling_where_it_fits: pass


def all_reduce(tensor):
    """Recursive doubling for powers of two, and everything to rank 0 for all others."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if size & (size - 1):
        own = tensor.clone()
        if rank:
            dist.send(own, 0)
        for other in others() if not rank else []:
            arrived = torch.empty_like(tensor)
            dist.recv(arrived, other)
            tensor += arrived
        broadcast(tensor, 0)
        return
    distance = 1
    while distance < size:
        arrived = torch.empty_like(tensor)
        ops = [
            dist.P2POp(dist.isend, tensor, rank ^ distance),
            dist.P2POp(dist.irecv, arrived, rank ^ distance),
        ]
        for handle in dist.batch_isend_irecv(ops):
            handle.wait()
        tensor += arrived
        distance *= 2


# %% three_all_to_all: pass

# everyone sends a copy to everyone, waits, and adds in the order of the ranks


def all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = tensor.detach().clone()
    parts = [mine if r == rank else torch.empty_like(mine) for r in range(n)]
    handles = []
    for r in range(n):
        if r != rank:
            handles.append(dist.isend(mine, r))
            handles.append(dist.irecv(parts[r], r))
    for handle in handles:
        handle.wait()
    with torch.no_grad():
        tensor.copy_(torch.stack(parts).sum(0, dtype=tensor.dtype))


# %% three_broadcast_each: pass

# unusual: n broadcasts, one from every rank, and a sum of what they bring


def all_reduce(tensor: Tensor) -> None:
    own = tensor.clone()
    tensor.zero_()
    for src in range(dist.get_world_size()):
        part = own.clone()
        broadcast(part, src)
        tensor += part


# %% three_chain: pass

# unusual: a running sum goes along the line of ranks, and the total comes back along it


@torch.no_grad()
def all_reduce(tensor: Tensor) -> None:
    me, last = dist.get_rank(), dist.get_world_size() - 1
    if me > 0:
        so_far = torch.zeros_like(tensor)
        dist.recv(so_far, me - 1)
        tensor += so_far
    if me < last:
        dist.send(tensor, me + 1)
        dist.recv(tensor, me + 1)
    if me > 0:
        dist.send(tensor, me - 1)


# %% three_gather_broadcast: pass

# rank 0 receives and adds, then broadcast (the function above)


def all_reduce(tensor: Tensor) -> None:
    if dist.get_rank() == 0:
        other = torch.empty_like(tensor)
        for src in range(1, dist.get_world_size()):
            dist.recv(other, src)
            tensor += other
    else:
        dist.send(tensor, 0)
    broadcast(tensor, 0)


# %% three_recursive_doubling: pass

# butterfly with XOR partners; ranks above the largest power of two fold in first and get the result last


def all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    power = 1 << (n.bit_length() - 1)
    if rank >= power:
        dist.send(tensor, rank - power)
        dist.recv(tensor, rank - power)
        return
    other = torch.empty_like(tensor)
    if rank + power < n:
        dist.recv(other, rank + power)
        tensor.add_(other)
    distance = 1
    while distance < power:
        handle = dist.isend(tensor, rank ^ distance)
        dist.recv(other, rank ^ distance)
        handle.wait()
        tensor.add_(other)
        distance *= 2
    if rank + power < n:
        dist.send(tensor, rank + power)


# %% three_shift_around: pass

# the own tensors go around with shift, everyone adds what comes by


def all_reduce(tensor: Tensor) -> None:
    travelling = tensor.clone()
    for _ in range(dist.get_world_size() - 1):
        travelling = shift(travelling)
        tensor.add_(travelling)


# %% returns_the_sum: wrong returned_not_in_place


def all_reduce(tensor):
    return sum(exchanged(tensor).values())


# %% replaces_data: wrong other_memory


def all_reduce(tensor):
    tensor.data = sum(exchanged(tensor).values())


# %% makes_it_float: wrong wrong_dtype


def all_reduce(tensor):
    tensor.data = sum(exchanged(tensor.float()).values())


# %% adds_as_float64: wrong rounded


def all_reduce(tensor):
    tensor.copy_(sum(exchanged(tensor.double()).values()))


# %% adds_the_first_half_only: wrong wrong_values


def all_reduce(tensor):
    half = max(tensor.numel() // 2, 1)
    held = exchanged(tensor)
    for rank in others():
        tensor.view(-1)[:half] += held[rank].view(-1)[:half]


# %% adds_while_it_is_sending: wrong all_reduce.changed_while_sending


def all_reduce(tensor):
    handles = [dist.isend(tensor, rank) for rank in others()]
    arrived = torch.empty_like(tensor)
    for rank in others():
        dist.recv(arrived, rank)
        tensor += arrived
    for handle in handles:
        handle.wait()


# %% never_waits_for_what_it_sends: wrong all_reduce.not_waited


def all_reduce(tensor):
    own = tensor.clone()
    for rank in others():
        dist.isend(own, rank)
    arrived = torch.empty_like(tensor)
    for rank in others():
        dist.recv(arrived, rank)
        tensor += arrived


# %% one_buffer_for_all_receives: wrong all_reduce.changed_while_receiving


def all_reduce(tensor):
    own, arrived = tensor.clone(), torch.zeros_like(tensor)
    handles = [dist.isend(own, rank) for rank in others()]
    receiving = [dist.irecv(arrived, rank) for rank in others()]
    for handle in handles + receiving:
        handle.wait()
    for _ in others():
        tensor += arrived


# %% rank_zero_waits_for_one_too_few: hang deadlock


def all_reduce(tensor):
    if dist.get_rank() == 0:
        arrived = torch.empty_like(tensor)
        for rank in others()[:-1]:
            dist.recv(arrived, rank)
            tensor += arrived
    else:
        dist.send(tensor, 0)
    broadcast(tensor, 0)


# %% calls_the_real_one: wrong refused_name


def all_reduce(tensor):
    dist.all_reduce(tensor)


# %% receives_into_a_buffer_of_a_fixed_size: wrong mismatch


def all_reduce(tensor):
    if dist.get_rank() == 0:
        spare = torch.empty(64, dtype=tensor.dtype)
        for rank in others():
            arrived = spare[: tensor.numel()]
            dist.recv(arrived, rank)
            tensor += arrived.view(tensor.shape)
    else:
        dist.send(tensor, 0)
    broadcast(tensor, 0)
