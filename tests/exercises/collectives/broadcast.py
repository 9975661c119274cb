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


broadcast.reading(whose)
handles_are_waited_for(broadcast)
travels_in_messages(
    broadcast, ["recv"], ranks=lambda case: [r for r in range(case.world) if r != case.src]
)


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
    "nothing was received into tensor: `tensor = ...` gives only your variable another one.",
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
    "all_send_first",
    "every rank sends, and each waits until its receiver takes the message.",
    fix="Only rank src sends, and the others receive from it.",
    status="hang",
)
def everybody_sends(tensor, src):
    send_to(others(dist.get_rank()), tensor)
    if dist.get_rank() != src:
        dist.recv(tensor, src)
