"""``collectives.shift``: every rank hands its tensor to the next one in a ring."""

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise
from multigpu.checking.probes import handles_are_waited_for

from .numbers import arguments, each_world, held, travels_in_messages, whose

shift = exercise(
    "collectives.shift",
    expects="every rank gets what the rank before it sent; with one rank, a copy of its tensor",
    keeps=["tensor"],
    fresh=True,
)
shift.cases(each_world)
shift.arguments(arguments)
shift.reading(whose)
handles_are_waited_for(shift)
travels_in_messages(shift)


@shift.expected
def expected(case):
    return [held(case, (rank - 1) % case.world) for rank in range(case.world)]


def size():
    return dist.get_world_size()


def right_of():
    return (dist.get_rank() + 1) % size()


def left_of():
    return (dist.get_rank() - 1) % size()


def exchange(outgoing, incoming=None, *, way=1):
    """The right answer, which most mistakes only spoil."""
    incoming = torch.empty_like(outgoing) if incoming is None else incoming
    sending = dist.isend(outgoing, (dist.get_rank() + way) % size())
    dist.recv(incoming, (dist.get_rank() - way) % size())
    sending.wait()
    return incoming


@shift.right
def in_a_batch(tensor):
    if size() == 1:
        return tensor.clone()
    received = torch.empty_like(tensor)
    ops = [
        dist.P2POp(dist.irecv, received, left_of()),
        dist.P2POp(dist.isend, tensor, right_of()),
    ]
    for handle in dist.batch_isend_irecv(ops):
        handle.wait()
    return received


@shift.right
def even_ranks_send_first(tensor):
    if size() == 1:
        return tensor.clone()
    received = torch.empty_like(tensor)
    if dist.get_rank() % 2 == 0:
        dist.send(tensor, right_of())
        dist.recv(received, left_of())
    else:
        dist.recv(received, left_of())
        dist.send(tensor, right_of())
    return received


@shift.mistake(
    "all_send_first",
    "all ranks send first, and each waits until its receiver takes the message.",
    fix="Start the send with isend, receive, then wait for the handle.",
    status="hang",
)
def sends_first(tensor):
    if size() == 1:
        return tensor.clone()
    received = torch.empty_like(tensor)
    dist.send(tensor, right_of())
    dist.recv(received, left_of())
    return received


@shift.mistake(
    "wrong_direction",
    "the ring runs the other way.",
    fix="Rank r sends to rank (r + 1) % {n} and receives from rank (r - 1) % {n}.",
)
def runs_the_other_way(tensor):
    return exchange(tensor, way=-1) if size() > 1 else tensor.clone()


@shift.mistake(
    "own_returned",
    "the function returns the rank's own tensor.",
    fix="Return the tensor that you received into.",
)
def returns_what_it_sent(tensor):
    if size() > 1:
        exchange(tensor)
    return tensor.clone()


@shift.mistake(
    "input_changed",
    "the message was received into the tensor that was given.",
    fix="Receive into a new one: torch.empty_like(tensor).",
)
def receives_into_the_input_after_a_copy(tensor):
    return exchange(tensor.clone(), tensor) if size() > 1 else tensor.clone()


@shift.mistake(
    "alone",
    "with one rank, the next rank is the rank itself, which cannot send to itself.",
    fix="With one rank, return tensor.clone().",
    status="crash",
)
def sends_to_itself_when_alone(tensor):
    return exchange(tensor)


@shift.mistake(
    "no_such_rank",
    "there is no rank after the last one, and none before rank 0.",
    fix="(rank + 1) % {n} and (rank - 1) % {n} lead around the ring.",
    status="crash",
)
def no_modulo(tensor):
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, dist.get_rank() + 1)
    dist.recv(received, dist.get_rank() - 1)
    sending.wait()
    return received
