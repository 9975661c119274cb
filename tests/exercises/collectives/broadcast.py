"""``collectives.broadcast``: one rank's tensor goes to all ranks."""

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise
from multigpu.checking.probes import handles_are_waited_for

from .numbers import each_tensor, held, own_tensor, travels_in_messages, whose

broadcast = exercise(
    "collectives.broadcast",
    expects="every rank's tensor holds what rank {src} held",
    result="tensor",
)


@broadcast.cases
def cases():
    for world in (3, 2, 4, 1):
        tensors = [each_tensor(world) for _ in range(3)]
        yield from (from_rank(0, case) for case in [*tensors[0]][:4])
        every = [*tensors[1], *reversed([*tensors[2]])]
        yield from (from_rank(number % world, case) for number, case in enumerate(every))


def from_rank(src, case):
    case.src = src
    case.title += f", src={src}"
    return case


@broadcast.arguments
def arguments(case, rank):
    return own_tensor(case, rank), case.src


@broadcast.expected
def expected(case):
    return [held(case, case.src)] * case.world


@broadcast.reading
def reading(case, tensor):
    return whose(case, tensor)


handles_are_waited_for(broadcast)
travels_in_messages(
    broadcast, ["recv"], ranks=lambda case: [r for r in range(case.world) if r != case.src]
)


# --- right answers -------------------------------------------------------------------------------


def others(src):
    return [rank for rank in range(dist.get_world_size()) if rank != src]


def send_to(ranks, tensor):
    for rank in ranks:
        dist.send(tensor, rank)


@broadcast.right
def a_chain(tensor, src):
    size, rank = dist.get_world_size(), dist.get_rank()
    place = (rank - src) % size
    if place > 0:
        dist.recv(tensor, (rank - 1) % size)
    if place < size - 1:
        dist.send(tensor, (rank + 1) % size)


@broadcast.right
def through_a_new_tensor_and_copy(tensor, src):
    if dist.get_rank() == src:
        send_to(others(src), tensor.clone())
    else:
        arrived = torch.zeros_like(tensor)
        dist.recv(arrived, src)
        tensor.copy_(arrived)
    return tensor


# --- mistakes ------------------------------------------------------------------------------------


@broadcast.mistake(
    "always_from_rank_zero",
    "rank 0 sends to the others, whichever rank src is.",
    fix="Compare dist.get_rank() with src, and receive from src.",
)
def always_from_rank_zero(tensor, src):
    if dist.get_rank() == 0:
        send_to(others(0), tensor)
    else:
        dist.recv(tensor, 0)


@broadcast.mistake(
    "not_received",
    "nothing was received into tensor: there was no message, or it was received into another"
    " tensor. `tensor = ...` gives only your variable another one.",
    fix="Every rank but src receives into tensor itself, or calls tensor.copy_(...).",
)
def receives_into_a_new_tensor(tensor, src):
    if dist.get_rank() == src:
        send_to(others(src), tensor)
    else:
        arrived = torch.empty_like(tensor)
        dist.recv(arrived, src)
        tensor = arrived


@broadcast.mistake(
    "not_all_reached",
    "the message reaches only the rank after src.",
    fix="Every rank but src must receive it, from src or from a rank that has it already.",
)
def sends_to_the_next_only(tensor, src):
    size = dist.get_world_size()
    if dist.get_rank() == src and size > 1:
        dist.send(tensor, (src + 1) % size)
    elif dist.get_rank() == (src + 1) % size:
        dist.recv(tensor, src)


@broadcast.mistake(
    "forwarded_too_early",
    "a rank passes on its own numbers, because those of rank src have not reached it yet.",
    fix="In a chain or a tree a rank receives before it sends on.",
)
def forwards_before_it_has_received(tensor, src):
    size, rank = dist.get_world_size(), dist.get_rank()
    place = (rank - src) % size
    handle = dist.isend(tensor.clone(), (rank + 1) % size) if place < size - 1 else None
    if place > 0:
        dist.recv(tensor, (rank - 1) % size)
    if handle:
        handle.wait()


@broadcast.mistake(
    "added",
    "what arrives was added to what was there.",
    fix="A broadcast only copies: receive into tensor itself.",
)
def adds_what_comes(tensor, src):
    if dist.get_rank() == src:
        send_to(others(src), tensor)
    else:
        arrived = torch.empty_like(tensor)
        dist.recv(arrived, src)
        tensor += arrived


@broadcast.mistake(
    "rounded",
    "the numbers went through a smaller dtype on the way.",
    fix="Send them in the tensor's own dtype: torch.empty_like(tensor) makes a buffer of it.",
)
def travels_as_float32(tensor, src):
    if dist.get_rank() == src:
        send_to(others(src), tensor.float())
    else:
        arrived = torch.empty(tensor.shape)
        dist.recv(arrived, src)
        tensor.copy_(arrived)


@broadcast.mistake(
    "source_cleared",
    "rank src cleared its own tensor.",
    fix="Rank src only sends.",
)
def clears_the_tensor_for_the_message(tensor, src):
    outgoing = tensor.clone()
    tensor.zero_()
    if dist.get_rank() == src:
        send_to(others(src), outgoing)
    else:
        dist.recv(tensor, src)


@broadcast.mistake(
    "sends_to_itself",
    "rank src sends a message to itself too.",
    fix="Leave rank src out of the loop.",
    status="crash",
)
def sends_to_itself_too(tensor, src):
    if dist.get_rank() == src:
        send_to(range(dist.get_world_size()), tensor)
    else:
        dist.recv(tensor, src)


@broadcast.mistake(
    "cut_into_rows",
    "the tensor was sent row by row, and one without a dimension has no rows.",
    fix="dist.send sends a whole tensor of any shape.",
    status="crash",
)
def row_by_row(tensor, src):
    for row in tensor:
        if dist.get_rank() == src:
            send_to(others(src), row)
        else:
            dist.recv(row, src)


@broadcast.mistake(
    "ring_closes",
    "the last rank of the chain sends to rank src too, which does not receive.",
    fix="A chain of {n} ranks has one message fewer: the rank before src sends nothing.",
    status="hang",
)
def chain_that_closes(tensor, src):
    size, rank = dist.get_world_size(), dist.get_rank()
    if rank != src:
        dist.recv(tensor, (rank - 1) % size)
    dist.send(tensor, (rank + 1) % size)


@broadcast.mistake(
    "all_receive_first",
    "every rank waits for a message, and no rank has sent one yet.",
    fix="Rank src only sends.",
    status="hang",
)
def everybody_receives(tensor, src):
    if dist.get_world_size() > 1:
        dist.recv(tensor)
        if dist.get_rank() == src:
            send_to(others(src), tensor)


@broadcast.mistake(
    "all_send_first",
    "every rank sends, and each waits until its receiver takes the message.",
    fix="Only rank src sends, and the others receive from it.",
    status="hang",
)
def everybody_sends(tensor, src):
    send_to(others(dist.get_rank()), tensor)
    if dist.get_rank() != src:
        dist.recv(tensor, src)
