"""Answers to ``ring_all_reduce``: how learners get it wrong, and ways to get it right.

They may call the other functions of the module, which are those of the solution.
"""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from collectives import all_reduce, shift
from harness import right, wrong


def here():
    rank, size = dist.get_rank(), dist.get_world_size()
    return rank, size, (rank + 1) % size, (rank - 1) % size


def exchange(outgoing, incoming):
    _, size, right_of, left_of = here()
    handle = dist.isend(outgoing, right_of)
    dist.recv(incoming, left_of)
    handle.wait()


def reduce_half(chunks, steps):
    rank, size, _, _ = here()
    for step in range(steps):
        target = chunks[(rank - step - 1) % size]
        arrived = torch.empty_like(target)
        exchange(chunks[(rank - step) % size], arrived)
        target += arrived


def gather_half(chunks, steps):
    rank, size, _, _ = here()
    for step in range(steps):
        exchange(chunks[(rank + 1 - step) % size], chunks[(rank - step) % size])


def cut(tensor):
    return tensor.view(-1).tensor_split(dist.get_world_size())


@wrong("ring_all_reduce.whole_tensor")
def forwards_the_whole_tensor(tensor):
    travelling = tensor.clone()
    for _ in range(dist.get_world_size() - 1):
        travelling = shift(travelling)
        tensor += travelling


@wrong("ring_all_reduce.whole_tensor")
def is_the_other_one(tensor):
    all_reduce(tensor)


@wrong("ring_all_reduce.too_many_messages")
def first_half_a_step_too_many(tensor):
    size = dist.get_world_size()
    if size > 1:
        reduce_half(cut(tensor), size)
        gather_half(cut(tensor), size - 1)


@wrong("refused_name")
def calls_the_real_one(tensor):
    dist.all_reduce(tensor)


@wrong("refused_name")
def calls_it_by_another_name(tensor):
    from torch.distributed.distributed_c10d import all_reduce as ready_made

    ready_made(tensor)


@wrong("ring_all_reduce.never_added")
def starts_the_second_half_with_its_own_chunk(tensor):
    rank, size, _, _ = here()
    chunks = cut(tensor)
    reduce_half(chunks, size - 1)
    for step in range(size - 1):
        exchange(chunks[(rank - step) % size], chunks[(rank - step - 1) % size])


@wrong("ring_all_reduce.chunk_too_large")
def puts_the_remainder_into_the_last_chunk(tensor):
    size = dist.get_world_size()
    per_chunk = tensor.numel() // size
    flat = tensor.view(-1)
    starts = [i * per_chunk for i in range(size)] + [tensor.numel()]
    chunks = [flat[a:b] for a, b in zip(starts, starts[1:])]
    reduce_half(chunks, size - 1)
    gather_half(chunks, size - 1)


@wrong("ring_all_reduce.not_neighbors")
def chunk_owners_instead_of_a_ring(tensor):
    rank, size, _, _ = here()
    chunks = cut(tensor)
    own = chunks[rank]
    total = own.clone()
    for distance in range(1, size):
        to, source = (rank + distance) % size, (rank - distance) % size
        arrived = torch.empty_like(own)
        handle = dist.isend(chunks[to], to)
        dist.recv(arrived, source)
        handle.wait()
        total += arrived
    own.copy_(total)
    for distance in range(1, size):
        to, source = (rank + distance) % size, (rank - distance) % size
        handle = dist.isend(own, to)
        dist.recv(chunks[source], source)
        handle.wait()


@wrong("ring_all_reduce.not_waited")
def never_waits_for_what_it_sends(tensor):
    rank, size, right_of, left_of = here()
    chunks = cut(tensor)
    for step in range(size - 1):
        target = chunks[(rank - step - 1) % size]
        arrived = torch.empty_like(target)
        dist.isend(chunks[(rank - step) % size].clone(), right_of)
        dist.recv(arrived, left_of)
        target += arrived
    gather_half(chunks, size - 1)


@wrong("ring_all_reduce.not_waited")
def waits_in_the_first_half_only(tensor):
    rank, size, right_of, left_of = here()
    chunks = cut(tensor)
    reduce_half(chunks, size - 1)
    for step in range(size - 1):
        ops = [
            dist.P2POp(dist.isend, chunks[(rank + 1 - step) % size], right_of),
            dist.P2POp(dist.irecv, chunks[(rank - step) % size], left_of),
        ]
        dist.batch_isend_irecv(ops)


@wrong("ring_all_reduce.changed_while_sending")
def waits_for_all_sends_at_the_end(tensor):
    """The last chunk of the first half is still on its way when the second half replaces it."""
    rank, size, right_of, left_of = here()
    chunks, handles = cut(tensor), []
    for step in range(size - 1):
        target = chunks[(rank - step - 1) % size]
        arrived = torch.empty_like(target)
        handles.append(dist.isend(chunks[(rank - step) % size], right_of))
        dist.recv(arrived, left_of)
        target += arrived
    for step in range(size - 1):
        handles.append(dist.isend(chunks[(rank + 1 - step) % size], right_of))
        dist.recv(chunks[(rank - step) % size], left_of)
    for handle in handles:
        handle.wait()


@wrong("mismatch")
def receives_into_a_buffer_of_a_fixed_size(tensor):
    rank, size, _, _ = here()
    chunks = cut(tensor)
    spare = torch.empty(8, dtype=tensor.dtype)
    for step in range(size - 1):
        target = chunks[(rank - step - 1) % size]
        arrived = spare[: len(target)]
        exchange(chunks[(rank - step) % size], arrived)
        target += arrived
    gather_half(chunks, size - 1)


@wrong("returned_not_in_place")
def returns_the_sum(tensor):
    chunks = [chunk.clone() for chunk in cut(tensor)]
    reduce_half(chunks, dist.get_world_size() - 1)
    gather_half(chunks, dist.get_world_size() - 1)
    return torch.cat(chunks).reshape(tensor.shape)


@wrong("other_memory")
def puts_the_result_under_it(tensor):
    chunks = [chunk.clone() for chunk in cut(tensor)]
    reduce_half(chunks, dist.get_world_size() - 1)
    gather_half(chunks, dist.get_world_size() - 1)
    tensor.data = torch.cat(chunks).reshape(tensor.shape)


@right
def the_other_way_round(tensor):
    rank, size, right_of, left_of = here()
    chunks = cut(tensor)
    for step in range(size - 1):
        target = chunks[(rank + step + 1) % size]
        arrived = torch.zeros_like(target)
        handles = [
            dist.irecv(arrived, right_of),
            dist.isend(chunks[(rank + step) % size], left_of),
        ]
        for handle in handles:
            handle.wait()
        target.add_(arrived)
    for step in range(size - 1):
        handles = [
            dist.irecv(chunks[(rank + step) % size], right_of),
            dist.isend(chunks[(rank + step - 1) % size], left_of),
        ]
        for handle in handles:
            handle.wait()


@right
def in_padded_chunks_of_one_size(tensor):
    """A buffer whose length divides, filled up with zeros."""
    rank, size, _, _ = here()
    flat = tensor.flatten()
    per_chunk = -(-len(flat) // size)
    padded = torch.zeros(per_chunk * size, dtype=tensor.dtype)
    padded[: len(flat)] = flat
    chunks = list(padded.view(size, per_chunk)) if per_chunk else [padded] * size
    reduce_half(chunks, size - 1)
    gather_half(chunks, size - 1)
    tensor.copy_(padded[: len(flat)].view(tensor.shape))


@right
def with_shift(tensor):
    """The chunk on its way is a tensor of its own, all chunks padded to one size."""
    rank, size, _, _ = here()
    flat = tensor.view(-1)
    per_chunk = -(-len(flat) // size)
    chunks = (
        list(torch.cat([flat, flat.new_zeros(per_chunk * size - len(flat))]).split(per_chunk))
        if per_chunk
        else []
    )
    if not chunks:
        return
    travelling = chunks[rank]
    for step in range(size - 1):
        travelling = shift(travelling) + chunks[(rank - step - 1) % size]
    result = {(rank + 1) % size: travelling}
    for step in range(size - 1):
        travelling = shift(travelling)
        result[(rank - step) % size] = travelling
    flat.copy_(torch.cat([result[i] for i in range(size)])[: len(flat)])


@right
def in_a_thread_of_its_own(tensor):
    import threading

    def work():
        size = dist.get_world_size()
        reduce_half(cut(tensor), size - 1)
        gather_half(cut(tensor), size - 1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
