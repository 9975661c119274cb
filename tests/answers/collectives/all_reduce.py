"""Answers to ``all_reduce`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist


def others():
    return [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]


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


# %% a_broadcast_of_each: pass
def all_reduce(tensor):
    own = tensor.clone()
    tensor.zero_()
    for src in range(dist.get_world_size()):
        part = own.clone()
        broadcast(part, src)
        tensor += part


# %% recursive_doubling: pass
def all_reduce(tensor):
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


# %% returns_the_sum: wrong returned_not_in_place
def all_reduce(tensor):
    return sum(exchanged(tensor).values())


# %% replaces_data: wrong other_memory
def all_reduce(tensor):
    tensor.data = sum(exchanged(tensor).values())


# %% makes_it_float: wrong wrong_dtype
def all_reduce(tensor):
    tensor.data = sum(exchanged(tensor.float()).values())


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
