"""Answers to ``ring_all_reduce`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import threading
import torch
import torch.distributed as dist
from exercises.collectives.ring_all_reduce import both_halves, cut, exchange, here


# %% the_other_way_round_in_strides: pass
def ring_all_reduce(tensor):
    """To rank - 1, and chunk i is every n-th element from i on."""
    rank, size, right_of, left_of = here()
    flat = tensor.view(-1)
    chunks = [flat[i::size] if i < len(flat) else flat[:0] for i in range(size)]
    for step in range(2 * (size - 1)):
        out, into = chunks[(rank + step) % size], chunks[(rank + step + 1) % size]
        message, arriving = out.contiguous(), into.new_empty(into.shape)
        sending = dist.isend(message, left_of) if len(message) else None
        if len(arriving):
            dist.irecv(arriving, right_of).wait()
        if sending:
            sending.wait()
        into.copy_(into + arriving if step < size - 1 else arriving)


# %% with_shift: pass
def ring_all_reduce(tensor):
    """The chunk on its way is a tensor of its own, all chunks padded to one size."""
    rank, size, _, _ = here()
    rows = tensor.new_zeros(size, -(-tensor.numel() // size))
    rows.view(-1)[: tensor.numel()] = tensor.view(-1)
    moving = rows[rank].clone()
    for step in range(1, size):
        moving = shift(moving) + rows[(rank - step) % size]
    for step in range(size - 1):
        rows[(rank + 1 - step) % size] = moving
        moving = shift(moving)
    rows[(rank + 2) % size] = moving
    tensor.copy_(rows.view(-1)[: tensor.numel()].view(tensor.shape))


# %% in_a_thread_of_its_own: pass
def ring_all_reduce(tensor):
    thread = threading.Thread(target=both_halves, args=(cut(tensor),))
    thread.start()
    thread.join()


# %% even_ranks_send_first: pass
def ring_all_reduce(tensor):
    rank, size, right_of, left_of = here()
    flat = tensor.reshape(-1)
    cuts = [len(flat) * i // size for i in range(size + 1)]

    def blocking(outgoing, incoming):
        if rank % 2 == 0:
            dist.send(outgoing, right_of)
            dist.recv(incoming, left_of)
        else:
            dist.recv(incoming, left_of)
            dist.send(outgoing, right_of)

    both_halves([flat[a:b] for a, b in zip(cuts, cuts[1:])], blocking)


# %% forwards_the_whole_tensor: wrong ring_all_reduce.chunk_too_large
def ring_all_reduce(tensor):
    travelling = tensor.clone()
    for _ in range(dist.get_world_size() - 1):
        travelling = shift(travelling)
        tensor += travelling


# %% puts_the_remainder_into_the_last_chunk: wrong ring_all_reduce.chunk_too_large
def ring_all_reduce(tensor):
    size = dist.get_world_size()
    per_chunk = tensor.numel() // size
    starts = [i * per_chunk for i in range(size)] + [tensor.numel()]
    both_halves([tensor.view(-1)[a:b] for a, b in zip(starts, starts[1:])])


# %% chunk_owners_instead_of_a_ring: wrong ring_all_reduce.not_neighbors
def ring_all_reduce(tensor):
    rank, size, _, _ = here()
    chunks = cut(tensor)
    own, total = chunks[rank], chunks[rank].clone()
    for distance in range(1, size):
        arrived = torch.empty_like(own)
        handle = dist.isend(chunks[(rank + distance) % size], (rank + distance) % size)
        dist.recv(arrived, (rank - distance) % size)
        handle.wait()
        total += arrived
    own.copy_(total)
    for distance in range(1, size):
        handle = dist.isend(own, (rank + distance) % size)
        dist.recv(chunks[(rank - distance) % size], (rank - distance) % size)
        handle.wait()


# %% forgets_the_step_in_the_index: wrong wrong_values
def ring_all_reduce(tensor):
    rank, size, _, _ = here()
    chunks = cut(tensor)
    for step in range(size - 1):
        arrived = torch.empty_like(chunks[rank - 1])
        exchange(chunks[rank], arrived)
        chunks[rank - 1].add_(arrived)
    for step in range(size - 1):
        exchange(chunks[(rank + 1) % size], chunks[rank])


# %% sends_nothing_where_its_own_chunk_is_empty: wrong mismatch
def ring_all_reduce(tensor):
    def skips(outgoing, incoming):
        incoming.zero_()
        if len(outgoing):
            exchange(outgoing, incoming)

    both_halves(cut(tensor), skips)


# %% cuts_along_the_first_dimension: crash exception
def ring_all_reduce(tensor):
    both_halves(list(tensor.tensor_split(dist.get_world_size())))


# %% goes_around_once_more: wrong ring_all_reduce.too_many_messages
def ring_all_reduce(tensor):
    rank, size, _, _ = here()
    chunks = cut(tensor)
    both_halves(chunks)
    if size > 1:
        exchange(chunks[(rank + 2) % size], chunks[(rank + 1) % size])
