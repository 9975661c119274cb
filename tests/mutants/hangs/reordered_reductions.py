"""Answers to ``reordered_reductions``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from harness import right, wrong


@wrong("reordered_reductions.other_order")
def through_a_set(tensors):
    for name in set(tensors):
        dist.all_reduce(tensors[name])


@wrong("reordered_reductions.other_order")
def all_at_once_in_its_own_order(tensors):
    handles = [dist.all_reduce(t, async_op=True) for t in tensors.values()]
    for handle in handles:
        handle.wait()


@wrong("reordered_reductions.other_order")
def sorted_by_what_they_hold(tensors):
    for name in sorted(tensors, key=lambda name: float(tensors[name].sum())):
        dist.all_reduce(tensors[name])


@wrong("reordered_reductions.other_order")
def a_barrier_between(tensors):
    for tensor in tensors.values():
        dist.barrier()
        dist.all_reduce(tensor)


@wrong("wrong_values")
def largest_instead_of_sum(tensors):
    for name in sorted(tensors):
        dist.all_reduce(tensors[name], op=dist.ReduceOp.MAX)


@right
def one_coalesced_call(tensors):
    if tensors:
        with dist._coalescing_manager():
            for name in sorted(tensors):
                dist.all_reduce(tensors[name])


@right
def functional_collectives(tensors):
    from torch.distributed import _functional_collectives as functional

    for name in sorted(tensors):
        tensors[name].copy_(functional.all_reduce(tensors[name], "sum", dist.group.WORLD))


@right
def asynchronously_from_the_last_name(tensors):
    handles = [
        dist.all_reduce(tensor, async_op=True)
        for _, tensor in sorted(tensors.items(), reverse=True)
    ]
    for handle in handles:
        handle.wait()


@right
def gathers_the_dicts(tensors):
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, {name: t.clone() for name, t in tensors.items()})
    for name, tensor in tensors.items():
        tensor.copy_(sum(own[name] for own in everything))


@right
def by_length_and_name(tensors):
    for name in sorted(tensors, key=lambda name: (-len(name), name)):
        dist.all_reduce(tensors[name], op=dist.ReduceOp.SUM)


@wrong("reordered_reductions.other_order")
def sorted_whatever_the_case(tensors):
    for name in sorted(tensors, key=str.lower):
        dist.all_reduce(tensors[name])
