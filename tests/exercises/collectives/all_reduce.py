"""``collectives.all_reduce``: the sum of all ranks' tensors on every rank, by any plan."""

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise
from multigpu.checking.probes import handles_are_waited_for

from .numbers import arguments, each_world, made_of, total, travels_in_messages

all_reduce = exercise(
    "collectives.all_reduce",
    expects="every rank's tensor holds the sum of all ranks' tensors",
    result="tensor",
)
all_reduce.cases(each_world)
all_reduce.arguments(arguments)
all_reduce.reading(made_of)
handles_are_waited_for(all_reduce)
travels_in_messages(all_reduce)


@all_reduce.expected
def expected(case):
    return [total(case)] * case.world


@all_reduce.words
def words(case):
    return {"steps": case.world - 1}


# --- what answers are made of --------------------------------------------------------------------


def others():
    return [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]


def exchanged(tensor):
    """The tensors of all ranks, in their order."""
    held = {dist.get_rank(): tensor.clone()}
    handles = [dist.isend(held[dist.get_rank()], rank) for rank in others()]
    for rank in others():
        held[rank] = torch.empty_like(tensor)
        handles.append(dist.irecv(held[rank], rank))
    for handle in handles:
        handle.wait()
    return [held[rank] for rank in sorted(held)]


def passed_on(tensor):
    """What the rank before holds."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return tensor.clone()
    arrived = torch.empty_like(tensor)
    sending = dist.isend(tensor, (rank + 1) % size)
    dist.recv(arrived, (rank - 1) % size)
    sending.wait()
    return arrived


@all_reduce.right
def everybody_tells_everybody(tensor):
    tensor.copy_(sum(exchanged(tensor)))


@all_reduce.right
def own_tensor_goes_around(tensor):
    travelling = tensor.clone()
    for _ in range(dist.get_world_size() - 1):
        travelling = passed_on(travelling)
        tensor += travelling


@all_reduce.mistake(
    "all_send_first",
    "all ranks call dist.send first, and each waits until its receiver takes the message.",
    fix="Start the sends with isend, receive, then wait; or let the others send to rank 0.",
    status="hang",
)
def everybody_sends_first(tensor):
    for rank in others():
        dist.send(tensor, rank)
    arrived = torch.empty_like(tensor)
    for rank in others():
        dist.recv(arrived, rank)
        tensor += arrived


@all_reduce.mistake(
    "only_rank_zero",
    "rank 0 has the sum, and did not send it to the others.",
    fix="Send it to all other ranks: broadcast(tensor, 0) does.",
)
def only_rank_zero_has_it(tensor):
    held = exchanged(tensor)
    if dist.get_rank() == 0:
        tensor.copy_(sum(held))


@all_reduce.mistake(
    "unchanged",
    "the sum is in another tensor: `tensor = tensor + arrived` gives only your variable a new one.",
    fix="Write into the tensor that was given: += or copy_().",
)
def rebinds(tensor):
    for held in exchanged(tensor):
        tensor = tensor + held


@all_reduce.mistake(
    "averaged",
    "the sum was divided by {n}.",
    fix="all_reduce adds up. For the mean, the caller divides afterward.",
)
def divides(tensor):
    tensor.copy_(sum(exchanged(tensor)) / dist.get_world_size())


@all_reduce.mistake(
    "counted_twice",
    "the sum so far was sent on and added, so early numbers are added again with each step.",
    fix="Send on what has just arrived, not the sum.",
)
def passes_the_sum_around(tensor):
    for _ in range(dist.get_world_size() - 1):
        tensor += passed_on(tensor)


@all_reduce.mistake(
    "own_added_twice",
    "the sum starts with the rank's own numbers, and then these are added again.",
    fix="Start with zeros, leave the own numbers out, or end a ring after n - 1 = {steps} steps.",
)
def starts_with_its_own_and_adds_all(tensor):
    for held in exchanged(tensor):
        tensor += held


@all_reduce.mistake(
    "own_left_out",
    "the rank's own numbers were overwritten by a message, or never added.",
    fix="Receive into a spare tensor and add that.",
)
def adds_the_others_only(tensor):
    held = exchanged(tensor)
    if others():
        tensor.copy_(sum(held[rank] for rank in others()))


@all_reduce.mistake(
    "rounded", "the numbers were added as float32.", fix="Add and send in the tensor's own dtype."
)
def adds_as_float32(tensor):
    tensor.copy_(sum(exchanged(tensor.float())))
