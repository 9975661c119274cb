"""``collectives.ring_all_reduce``: the sum over all ranks, in chunks that travel around a ring."""

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise
from multigpu.checking.probes import handles_are_waited_for
from multigpu.checking.verdicts import numbered
from multigpu.ranks.errors import counted

from .numbers import arguments, each_world, made_of, total, travels_in_messages

ring_all_reduce = exercise(
    "collectives.ring_all_reduce",
    expects="every rank's tensor holds the sum of all ranks' tensors",
    result="tensor",
)
ring_all_reduce.arguments(arguments)
ring_all_reduce.reading(made_of)
handles_are_waited_for(ring_all_reduce)
travels_in_messages(ring_all_reduce)


@ring_all_reduce.cases
def cases():
    for each in each_world():
        each.chunk = -(-each.size // each.world)  # rounded up
        yield each


@ring_all_reduce.expected
def expected(case):
    return [total(case)] * case.world


@ring_all_reduce.words
def words(case):
    return {"steps": case.world - 1}


@ring_all_reduce.holds(
    "not_neighbors",
    expects="a rank sends to its neighbors in the ring only",
    usually="the result is right, but not made in a ring.",
    fix="Rank r sends to rank (r + 1) % {n}.",
)
def talks_to_others(run, case):
    for rank in range(case.world):
        neighbors = {(rank + 1) % case.world, (rank - 1) % case.world}
        for call in run.calls(case, rank):
            if call.op == "send" and call.peer not in neighbors:
                others = numbered("rank", sorted(neighbors))
                came = f"rank {rank} sent to rank {call.peer}; its neighbors are {others}"
                return came, call.place
    return None


@ring_all_reduce.holds(
    "chunk_too_large",
    expects="a rank sends at most ceil({size} / {n}) = {chunk} elements in one message",
    usually="the tensor was not cut, or one chunk takes all that is left over.",
    fix="tensor_split({n}) makes {n} chunks that differ by one element at most.",
)
def chunks_too_large(run, case):
    for rank in range(case.world):
        for call in run.calls(case, rank):
            if call.op == "send" and call.numel > case.chunk:
                return (
                    f"rank {rank} sent {counted(call.numel, 'element')} in one message",
                    call.place,
                )
    return None


@ring_all_reduce.holds(
    "too_many_messages",
    expects="each rank sends no more messages than it must",
    usually="each of the two halves needs {n} - 1 = {steps} messages.",
    fix="A half has n - 1 steps: range(n - 1).",
)
def too_many_messages(run, case):
    most = 2 * (case.world - 1)
    for rank in range(case.world):
        sends = [call for call in run.calls(case, rank) if call.op == "send"]
        if len(sends) > most:
            came = f"rank {rank} sent {counted(len(sends), 'message')} where {most} are enough"
            return came, sends[-1].place
    return None


# --- what answers are made of --------------------------------------------------------------------


def here():
    rank, size = dist.get_rank(), dist.get_world_size()
    return rank, size, (rank + 1) % size, (rank - 1) % size


def exchange(outgoing, incoming):
    _, _, right_of, left_of = here()
    handle = dist.isend(outgoing, right_of)
    dist.recv(incoming, left_of)
    handle.wait()


def around(chunks, half, *, add, exchange=exchange):
    """Half 0 or 1: what arrives is added to a chunk, or takes its place."""
    rank, size, _, _ = here()
    for step in range(size - 1):
        target = chunks[(rank + half - step - 1) % size]
        arrived = torch.empty_like(target)
        exchange(chunks[(rank + half - step) % size], arrived)
        target.copy_(target + arrived if add else arrived)


def both_halves(chunks, exchange=exchange, add=(True, False)):
    for half in range(2):
        around(chunks, half, add=add[half], exchange=exchange)


def cut(tensor):
    return tensor.view(-1).tensor_split(dist.get_world_size())


@ring_all_reduce.right
def in_plain_words(tensor):
    both_halves(cut(tensor))


@ring_all_reduce.mistake(
    "all_send_first",
    "all ranks call dist.send first, and each waits until its receiver takes the message.",
    fix="Start with isend, receive, then wait for the handle.",
    status="hang",
)
def sends_first(tensor):
    _, _, right_of, left_of = here()

    def exchange(outgoing, incoming):
        dist.send(outgoing, right_of)
        dist.recv(incoming, left_of)

    around(cut(tensor), 0, add=True, exchange=exchange)


@ring_all_reduce.mistake(
    "second_half_missing",
    "after the first half each rank has one finished chunk, and the others are never sent.",
    fix="The second half sends the finished chunks around, in {n} - 1 = {steps} more steps.",
)
def forgets_the_second_half(tensor):
    around(cut(tensor), 0, add=True)


@ring_all_reduce.mistake(
    "added_again",
    "a finished chunk was added to what was there.",
    fix="In the second half what arrives replaces the chunk.",
)
def adds_in_the_second_half_too(tensor):
    both_halves(cut(tensor), add=(True, True))


@ring_all_reduce.mistake(
    "never_added",
    "the first half replaces chunks, or the second begins with another than the finished chunk.",
    fix="In the first half add what arrives; the second half starts with the finished chunk.",
)
def replaces_in_the_first_half(tensor):
    both_halves(cut(tensor), add=(False, False))


@ring_all_reduce.mistake(
    "remainder_left_out",
    "{size} // {n} rounds down, and the elements that are left over at the end are in no chunk.",
    fix="tensor_split({n}) makes {n} chunks of all elements.",
)
def drops_the_remainder(tensor):
    size = dist.get_world_size()
    per_chunk = tensor.numel() // size
    flat = tensor.view(-1)
    chunks = [flat[i * per_chunk : (i + 1) * per_chunk] for i in range(size)]
    if per_chunk:
        both_halves(chunks)


@ring_all_reduce.mistake(
    "unchanged",
    "the sum was made in copies of the chunks.",
    fix="Write into the tensor that was given: views of it, += or copy_().",
)
def works_on_a_copy(tensor):
    both_halves([chunk.clone() for chunk in cut(tensor)])


@ring_all_reduce.mistake(
    "rounded",
    "the numbers went through a smaller dtype on the way.",
    fix="Add and send in the tensor's own dtype.",
)
def adds_as_float32(tensor):
    chunks = [chunk.float() for chunk in cut(tensor)]
    both_halves(chunks)
    tensor.copy_(torch.cat(chunks).reshape(tensor.shape))


@ring_all_reduce.mistake(
    "too_few_chunks",
    "torch.chunk({n}) makes fewer than {n} chunks when there are few elements.",
    fix="tensor_split({n}) always makes {n}; some may be empty.",
    status="crash",
)
def takes_chunk_for_granted(tensor):
    both_halves(tensor.view(-1).chunk(dist.get_world_size()))
