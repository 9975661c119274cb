"""Answers to ``all_reduce``: how learners get it wrong, and ways to get it right.

They may call the other functions of the module, which are those of the solution.
"""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from collectives import broadcast, ring_all_reduce, shift
from harness import right, wrong


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


@wrong("returned_not_in_place")
def returns_the_sum(tensor):
    return sum(exchanged(tensor).values())


@wrong("other_memory")
def replaces_data(tensor):
    tensor.data = sum(exchanged(tensor).values())


@wrong("wrong_dtype")
def makes_it_float(tensor):
    tensor.data = sum(exchanged(tensor.float()).values())


@wrong("rounded")
def adds_as_float64(tensor):
    tensor.copy_(sum(exchanged(tensor.double()).values()))


@wrong("wrong_values")
def adds_the_first_half_only(tensor):
    half = max(tensor.numel() // 2, 1)
    held = exchanged(tensor)
    for rank in others():
        tensor.view(-1)[:half] += held[rank].view(-1)[:half]


@wrong("all_reduce.changed_while_sending")
def adds_while_it_is_sending(tensor):
    handles = [dist.isend(tensor, rank) for rank in others()]
    arrived = torch.empty_like(tensor)
    for rank in others():
        dist.recv(arrived, rank)
        tensor += arrived
    for handle in handles:
        handle.wait()


@wrong("all_reduce.not_waited")
def never_waits_for_what_it_sends(tensor):
    own = tensor.clone()
    for rank in others():
        dist.isend(own, rank)
    arrived = torch.empty_like(tensor)
    for rank in others():
        dist.recv(arrived, rank)
        tensor += arrived


@wrong("all_reduce.not_waited")
def reads_before_it_has_come(tensor):
    own = tensor.clone()
    sending = [dist.isend(own, rank) for rank in others()]
    for rank in others():
        arrived = torch.zeros_like(tensor)
        dist.irecv(arrived, rank)
        tensor += arrived
    for handle in sending:
        handle.wait()


@wrong("all_reduce.changed_while_receiving")
def one_buffer_for_all_receives(tensor):
    own, arrived = tensor.clone(), torch.zeros_like(tensor)
    handles = [dist.isend(own, rank) for rank in others()]
    receiving = [dist.irecv(arrived, rank) for rank in others()]
    for handle in handles + receiving:
        handle.wait()
    for _ in others():
        tensor += arrived


@wrong("deadlock", status="hang")
def rank_zero_waits_for_one_too_few(tensor):
    if dist.get_rank() == 0:
        arrived = torch.empty_like(tensor)
        for rank in others()[:-1]:
            dist.recv(arrived, rank)
            tensor += arrived
    else:
        dist.send(tensor, 0)
    broadcast(tensor, 0)


@wrong("refused_name")
def calls_the_real_one(tensor):
    dist.all_reduce(tensor)


@wrong("refused_name")
def in_two_collectives(tensor):
    dist.reduce(tensor, 0)
    dist.broadcast(tensor, 0)


@wrong("mismatch")
def receives_into_a_buffer_of_a_fixed_size(tensor):
    if dist.get_rank() == 0:
        spare = torch.empty(64, dtype=tensor.dtype)
        for rank in others():
            arrived = spare[: tensor.numel()]
            dist.recv(arrived, rank)
            tensor += arrived.view(tensor.shape)
    else:
        dist.send(tensor, 0)
    broadcast(tensor, 0)


def one_message_around(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    if size > 1:
        handle = dist.isend(tensor.clone(), (rank + 1) % size)
        dist.recv(torch.empty_like(tensor), (rank - 1) % size)
        handle.wait()


@wrong("refused_name")
def looks_for_a_group_behind_the_group(tensor):
    group = getattr(dist.group.WORLD, "inner", dist.group.WORLD)
    one_message_around(tensor)
    group.allreduce([tensor]).wait()


@wrong("refused_name")
def asks_for_the_backend_of_the_group(tensor):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    one_message_around(tensor)
    backend.allreduce([tensor]).wait()


@wrong("refused_name")
def a_functional_one(tensor):
    from torch.distributed._functional_collectives import all_reduce as functional

    tensor.copy_(functional(tensor, "sum", dist.group.WORLD))


@right
def in_chunks(tensor):
    ring_all_reduce(tensor)


@right
def a_chain_and_back(tensor):
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


@right
def doubling_where_it_fits(tensor):
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
