"""Answers to ``broadcast``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from harness import right, wrong


def others(src):
    return [rank for rank in range(dist.get_world_size()) if rank != src]


@wrong("broadcast.source_changed")
def always_from_rank_zero(tensor, src):
    if dist.get_rank() == 0:
        for rank in others(0):
            dist.send(tensor, rank)
    else:
        dist.recv(tensor, 0)


@wrong("broadcast.returned_not_in_place")
def rebinds(tensor, src):
    if dist.get_rank() == src:
        for rank in others(src):
            dist.send(tensor, rank)
    else:
        arrived = torch.empty_like(tensor)
        dist.recv(arrived, src)
        tensor = arrived
    return tensor


@wrong("broadcast.not_received")
def receives_into_a_new_tensor(tensor, src):
    if dist.get_rank() == src:
        for rank in others(src):
            dist.send(tensor, rank)
    else:
        arrived = torch.empty_like(tensor)
        dist.recv(arrived, src)
        tensor = arrived


@wrong("broadcast.rebound")
def replaces_data(tensor, src):
    if dist.get_rank() == src:
        for rank in others(src):
            dist.send(tensor, rank)
    else:
        arrived = torch.empty_like(tensor)
        dist.recv(arrived, src)
        tensor.data = arrived


@wrong("broadcast.not_received")
def sends_to_the_next_only(tensor, src):
    size = dist.get_world_size()
    if dist.get_rank() == src and size > 1:
        dist.send(tensor, (src + 1) % size)
    elif dist.get_rank() == (src + 1) % size:
        dist.recv(tensor, src)


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


@wrong("exception", status="crash")
def sends_to_itself_too(tensor, src):
    if dist.get_rank() == src:
        for rank in range(dist.get_world_size()):
            dist.send(tensor, rank)
    else:
        dist.recv(tensor, src)


@wrong("broadcast.all_receive_first", status="hang")
def everybody_receives(tensor, src):
    if dist.get_world_size() > 1:
        dist.recv(tensor)
        if dist.get_rank() == src:
            for rank in others(src):
                dist.send(tensor, rank)


@wrong("broadcast.all_send_first", status="hang")
def everybody_sends(tensor, src):
    for rank in others(dist.get_rank()):
        dist.send(tensor, rank)
    if dist.get_rank() != src:
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


@wrong("broadcast.wrong_source")
def forwards_before_it_has_received(tensor, src):
    """A chain in which a rank sends its own tensor on, and not the one that comes."""
    size, rank = dist.get_world_size(), dist.get_rank()
    place = (rank - src) % size
    own = tensor.clone()
    handle = dist.isend(own, (rank + 1) % size) if place < size - 1 else None
    if place > 0:
        dist.recv(tensor, (rank - 1) % size)
    if handle:
        handle.wait()


@wrong("broadcast.other_values")
def adds_what_comes(tensor, src):
    if dist.get_rank() == src:
        for rank in others(src):
            dist.send(tensor, rank)
    else:
        arrived = torch.empty_like(tensor)
        dist.recv(arrived, src)
        tensor += arrived


@wrong("broadcast.rounded")
def travels_as_float32(tensor, src):
    if dist.get_rank() == src:
        for rank in others(src):
            dist.send(tensor.float(), rank)
    else:
        arrived = torch.empty(tensor.shape)
        dist.recv(arrived, src)
        tensor.copy_(arrived)


@wrong("broadcast.source_changed")
def clears_the_tensor_for_the_message(tensor, src):
    outgoing = tensor.clone()
    tensor.zero_()
    if dist.get_rank() == src:
        for rank in others(src):
            dist.send(outgoing, rank)
    else:
        dist.recv(tensor, src)


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
def a_chain(tensor, src):
    size, rank = dist.get_world_size(), dist.get_rank()
    place = (rank - src) % size
    if place > 0:
        dist.recv(tensor, (rank - 1) % size)
    if place < size - 1:
        dist.send(tensor, (rank + 1) % size)


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
def through_a_new_tensor_and_copy(tensor, src):
    if dist.get_rank() == src:
        for rank in others(src):
            dist.send(tensor.clone(), rank)
        return tensor
    arrived = torch.zeros_like(tensor)
    dist.irecv(arrived, src=src).wait()
    tensor.copy_(arrived)
    return tensor


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
