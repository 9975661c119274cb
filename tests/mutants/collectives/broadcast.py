"""Answers to ``broadcast``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from harness import right, wrong


def others(src):
    return [rank for rank in range(dist.get_world_size()) if rank != src]


@wrong("returned_not_in_place")
def rebinds(tensor, src):
    if dist.get_rank() == src:
        for rank in others(src):
            dist.send(tensor, rank)
    else:
        arrived = torch.empty_like(tensor)
        dist.recv(arrived, src)
        tensor = arrived
    return tensor


@wrong("other_memory")
def replaces_data(tensor, src):
    if dist.get_rank() == src:
        for rank in others(src):
            dist.send(tensor, rank)
    else:
        arrived = torch.empty_like(tensor)
        dist.recv(arrived, src)
        tensor.data = arrived


@wrong("broadcast.not_received")
def does_nothing(tensor, src):
    pass


@wrong("deadlock", status="hang")
def leaves_the_last_rank_out(tensor, src):
    if dist.get_rank() == src:
        for rank in range(dist.get_world_size() - 1):
            if rank != src:
                dist.send(tensor, rank)
    else:
        dist.recv(tensor, src)


@wrong("broadcast.not_waited")
def throws_the_handles_away(tensor, src):
    if dist.get_rank() == src:
        for rank in others(src):
            dist.isend(tensor, rank)
    else:
        dist.recv(tensor, src)


@wrong("broadcast.not_waited")
def never_waits_for_the_receive(tensor, src):
    if dist.get_rank() == src:
        for rank in others(src):
            dist.send(tensor, rank)
    else:
        dist.irecv(tensor, src)


@wrong("broadcast.not_waited")
def waits_for_the_last_one_only(tensor, src):
    handle = None
    if dist.get_rank() == src:
        for rank in others(src):
            handle = dist.isend(tensor, rank)
    else:
        handle = dist.irecv(tensor, src)
    if handle is not None:
        handle.wait()


@wrong("mismatch")
def receives_into_a_buffer_of_a_fixed_size(tensor, src):
    if dist.get_rank() == src:
        for rank in others(src):
            dist.send(tensor.view(-1), rank)
    else:
        arrived = torch.empty(64, dtype=tensor.dtype)[: tensor.numel()]
        dist.recv(arrived, src)
        tensor.copy_(arrived.view(tensor.shape))


@wrong("refused_name")
def calls_the_real_one(tensor, src):
    dist.broadcast(tensor, src)


@wrong("refused_name")
def calls_the_group(tensor, src):
    from torch.distributed import distributed_c10d

    options = distributed_c10d.BroadcastOptions()
    options.rootRank = src
    options.rootTensor = 0
    dist.group.WORLD.broadcast([tensor], options).wait()


@right
def a_tree(tensor, src):
    size = dist.get_world_size()
    place = (dist.get_rank() - src) % size
    reached = 1
    while reached < size:
        if place < reached and place + reached < size:
            dist.send(tensor, (place + reached + src) % size)
        elif reached <= place < 2 * reached:
            dist.recv(tensor, (place - reached + src) % size)
        reached *= 2


@right
def in_a_batch(tensor, src):
    if dist.get_rank() == src:
        ops = [dist.P2POp(dist.isend, tensor, rank) for rank in others(src)]
    else:
        ops = [dist.P2POp(dist.irecv, tensor, src)]
    for handle in dist.batch_isend_irecv(ops) if ops else []:
        handle.wait()


@right
def over_rank_zero(tensor, src):
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
