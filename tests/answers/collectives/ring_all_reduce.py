"""Answers to ``ring_all_reduce`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from torch import Tensor


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


# %% the_other_way_round: pass


def ring_all_reduce(tensor):
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


# %% in_padded_chunks_of_one_size: pass


def ring_all_reduce(tensor):
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


# %% with_shift: pass


def ring_all_reduce(tensor):
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


# %% in_a_thread_of_its_own: pass


def ring_all_reduce(tensor):
    import threading

    def work():
        size = dist.get_world_size()
        reduce_half(cut(tensor), size - 1)
        gather_half(cut(tensor), size - 1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


# %% three_backwards_strided: pass

# unusual: the ring turns the other way (to rank - 1), and chunk i is every n-th element from i on


def ring_all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    flat = tensor.view(-1)
    chunks = [flat[i::n] if i < flat.numel() else flat[:0] for i in range(n)]
    for step in range(2 * (n - 1)):
        out, into = chunks[(rank + step) % n], chunks[(rank + step + 1) % n]
        message, arriving = out.contiguous(), into.new_empty(into.shape)
        sending = dist.isend(message, (rank - 1) % n) if message.numel() else None
        if arriving.numel():
            dist.irecv(arriving, (rank + 1) % n).wait()
        if sending:
            sending.wait()
        if step < n - 1:
            into.add_(arriving)
        else:
            into.copy_(arriving)


# %% three_blocking_parity: pass

# only blocking send and recv: even ranks send first, odd ranks receive first


def ring_all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    flat = tensor.reshape(-1)  # a view: the tensor is contiguous
    cuts = [flat.numel() * i // n for i in range(n + 1)]

    def chunk(index: int) -> Tensor:
        index %= n
        return flat[cuts[index] : cuts[index + 1]]

    def swap(outgoing: Tensor, incoming: Tensor) -> None:
        if rank % 2 == 0:
            dist.send(outgoing, (rank + 1) % n)
            dist.recv(incoming, (rank - 1) % n)
        else:
            dist.recv(incoming, (rank - 1) % n)
            dist.send(outgoing, (rank + 1) % n)

    for step in range(n - 1):
        mine = chunk(rank - step - 1)
        incoming = torch.empty_like(mine)
        swap(chunk(rank - step), incoming)
        mine += incoming
    for step in range(n - 1):
        swap(chunk(rank - step + 1), chunk(rank - step))


# %% three_bounds_batch: pass

# chunk bounds by hand, batch_isend_irecv, empty messages left out


def _pass_on(out: Tensor, into: Tensor, right: int, left: int) -> None:
    ops = []
    if out.numel():
        ops.append(dist.P2POp(dist.isend, out, right))
    if into.numel():
        ops.append(dist.P2POp(dist.irecv, into, left))
    if ops:
        for work in dist.batch_isend_irecv(ops):
            work.wait()


def ring_all_reduce(tensor: Tensor) -> None:
    n, me = dist.get_world_size(), dist.get_rank()
    flat = tensor.detach().view(-1)
    size = flat.numel()
    step_size = -(-size // n)
    parts = [flat[min(i * step_size, size) : min((i + 1) * step_size, size)] for i in range(n)]
    left, right = (me - 1) % n, (me + 1) % n

    for s in range(n - 1):
        here = parts[(me - s - 1) % n]
        arrived = torch.zeros_like(here)
        _pass_on(parts[(me - s) % n], arrived, right, left)
        here.add_(arrived)
    for s in range(n - 1):
        _pass_on(parts[(me + 1 - s) % n], parts[(me - s) % n], right, left)


# %% three_padded_shift: pass

# pads to n equal rows, and moves rows with shift; copies the sum back at the end


def ring_all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return
    size = tensor.numel()
    rows = tensor.new_zeros(n, (size + n - 1) // n)
    rows.view(-1)[:size] = tensor.reshape(-1)

    moving = rows[rank].clone()
    for step in range(1, n):
        moving = shift(moving) + rows[(rank - step) % n]
    # moving is the finished row (rank + 1) % n
    rows[(rank + 1) % n] = moving
    for step in range(n - 1):
        moving = shift(moving)
        rows[(rank - step) % n] = moving
    tensor.copy_(rows.view(-1)[:size].view(tensor.shape))


# %% three_tensor_split: pass

# views from tensor_split of the flat tensor, a helper for one exchange, empty chunks are sent too


def ring_all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return
    chunks = list(tensor.view(-1).tensor_split(n))

    def exchange(outgoing: int) -> tuple[int, Tensor]:
        into = (outgoing - 1) % n
        buffer = torch.empty_like(chunks[into])
        handle = dist.isend(chunks[outgoing], (rank + 1) % n)
        dist.recv(buffer, (rank - 1) % n)
        handle.wait()
        return into, buffer

    for step in range(n - 1):
        into, buffer = exchange((rank - step) % n)
        chunks[into] += buffer
    for step in range(n - 1):
        into, buffer = exchange((rank + 1 - step) % n)
        chunks[into].copy_(buffer)


# %% forwards_the_whole_tensor: wrong ring_all_reduce.whole_tensor


def ring_all_reduce(tensor):
    travelling = tensor.clone()
    for _ in range(dist.get_world_size() - 1):
        travelling = shift(travelling)
        tensor += travelling


# %% calls_the_real_one: wrong refused_name


def ring_all_reduce(tensor):
    dist.all_reduce(tensor)


# %% puts_the_remainder_into_the_last_chunk: wrong ring_all_reduce.chunk_too_large


def ring_all_reduce(tensor):
    size = dist.get_world_size()
    per_chunk = tensor.numel() // size
    flat = tensor.view(-1)
    starts = [i * per_chunk for i in range(size)] + [tensor.numel()]
    chunks = [flat[a:b] for a, b in zip(starts, starts[1:])]
    reduce_half(chunks, size - 1)
    gather_half(chunks, size - 1)


# %% chunk_owners_instead_of_a_ring: wrong ring_all_reduce.not_neighbors


def ring_all_reduce(tensor):
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


# %% never_waits_for_what_it_sends: wrong ring_all_reduce.not_waited


def ring_all_reduce(tensor):
    rank, size, right_of, left_of = here()
    chunks = cut(tensor)
    for step in range(size - 1):
        target = chunks[(rank - step - 1) % size]
        arrived = torch.empty_like(target)
        dist.isend(chunks[(rank - step) % size].clone(), right_of)
        dist.recv(arrived, left_of)
        target += arrived
    gather_half(chunks, size - 1)


# %% waits_for_all_sends_at_the_end: wrong ring_all_reduce.changed_while_sending


def ring_all_reduce(tensor):
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


# %% receives_into_a_buffer_of_a_fixed_size: wrong mismatch


def ring_all_reduce(tensor):
    rank, size, _, _ = here()
    chunks = cut(tensor)
    spare = torch.empty(8, dtype=tensor.dtype)
    for step in range(size - 1):
        target = chunks[(rank - step - 1) % size]
        arrived = spare[: len(target)]
        exchange(chunks[(rank - step) % size], arrived)
        target += arrived
    gather_half(chunks, size - 1)


# %% returns_the_sum: wrong returned_not_in_place


def ring_all_reduce(tensor):
    chunks = [chunk.clone() for chunk in cut(tensor)]
    reduce_half(chunks, dist.get_world_size() - 1)
    gather_half(chunks, dist.get_world_size() - 1)
    return torch.cat(chunks).reshape(tensor.shape)


# %% puts_the_result_under_it: wrong other_memory


def ring_all_reduce(tensor):
    chunks = [chunk.clone() for chunk in cut(tensor)]
    reduce_half(chunks, dist.get_world_size() - 1)
    gather_half(chunks, dist.get_world_size() - 1)
    tensor.data = torch.cat(chunks).reshape(tensor.shape)


# %% three_fixed_step: wrong wrong_values

# always exchanges chunks rank and rank - 1, the step is forgotten in the index: right on 2 ranks


def ring_all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return
    chunks = list(tensor.view(-1).tensor_split(n))

    def exchange(outgoing: int) -> tuple[int, Tensor]:
        into = (outgoing - 1) % n
        buffer = torch.empty_like(chunks[into])
        handle = dist.isend(chunks[outgoing], (rank + 1) % n)
        dist.recv(buffer, (rank - 1) % n)
        handle.wait()
        return into, buffer

    for step in range(n - 1):
        into, buffer = exchange((rank) % n)
        chunks[into] += buffer
    for step in range(n - 1):
        into, buffer = exchange((rank + 1) % n)
        chunks[into].copy_(buffer)


# %% three_own_size_buffer: wrong mismatch

# the buffer has the size of the chunk that is sent, not of the one that arrives: fails when it does not divide by n


def ring_all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return
    chunks = list(tensor.view(-1).tensor_split(n))

    def exchange(outgoing: int) -> tuple[int, Tensor]:
        into = (outgoing - 1) % n
        buffer = torch.empty_like(chunks[outgoing])
        handle = dist.isend(chunks[outgoing], (rank + 1) % n)
        dist.recv(buffer, (rank - 1) % n)
        handle.wait()
        return into, buffer

    for step in range(n - 1):
        into, buffer = exchange((rank - step) % n)
        chunks[into] += buffer
    for step in range(n - 1):
        into, buffer = exchange((rank + 1 - step) % n)
        chunks[into].copy_(buffer)


# %% three_skips_own_empty: wrong mismatch

# leaves out the whole exchange when the own outgoing chunk is empty, although one arrives: hangs or loses chunks


def ring_all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return
    chunks = list(tensor.view(-1).tensor_split(n))

    def exchange(outgoing: int) -> tuple[int, Tensor]:
        into = (outgoing - 1) % n
        buffer = torch.zeros_like(chunks[into])
        if chunks[outgoing].numel() > 0:
            handle = dist.isend(chunks[outgoing], (rank + 1) % n)
            dist.recv(buffer, (rank - 1) % n)
            handle.wait()
        return into, buffer

    for step in range(n - 1):
        into, buffer = exchange((rank - step) % n)
        chunks[into] += buffer
    for step in range(n - 1):
        into, buffer = exchange((rank + 1 - step) % n)
        chunks[into].copy_(buffer)


# %% three_split_rows: crash exception

# splits along the first dimension, not the flat tensor: fails without dimension, too large messages for few long rows


def ring_all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return
    chunks = list(tensor.tensor_split(n))

    def exchange(outgoing: int) -> tuple[int, Tensor]:
        into = (outgoing - 1) % n
        buffer = torch.empty_like(chunks[into])
        handle = dist.isend(chunks[outgoing], (rank + 1) % n)
        dist.recv(buffer, (rank - 1) % n)
        handle.wait()
        return into, buffer

    for step in range(n - 1):
        into, buffer = exchange((rank - step) % n)
        chunks[into] += buffer
    for step in range(n - 1):
        into, buffer = exchange((rank + 1 - step) % n)
        chunks[into].copy_(buffer)


# %% three_torch_chunk: crash exception

# torch.chunk: may give fewer than n chunks, IndexError (e.g. 5 elements on 4 ranks, 2 on 3)


def ring_all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return
    chunks = list(tensor.view(-1).chunk(n))

    def exchange(outgoing: int) -> tuple[int, Tensor]:
        into = (outgoing - 1) % n
        buffer = torch.empty_like(chunks[into])
        handle = dist.isend(chunks[outgoing], (rank + 1) % n)
        dist.recv(buffer, (rank - 1) % n)
        handle.wait()
        return into, buffer

    for step in range(n - 1):
        into, buffer = exchange((rank - step) % n)
        chunks[into] += buffer
    for step in range(n - 1):
        into, buffer = exchange((rank + 1 - step) % n)
        chunks[into].copy_(buffer)
