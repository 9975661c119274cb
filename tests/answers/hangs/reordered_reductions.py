"""Answers to ``reordered_reductions`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist


# %% one_coalesced_call: pass
def reordered_reductions(tensors):
    if tensors:
        with dist._coalescing_manager():
            for name in sorted(tensors):
                dist.all_reduce(tensors[name])


# %% functional_collectives: pass
def reordered_reductions(tensors):
    from torch.distributed import _functional_collectives as functional

    for name in sorted(tensors):
        tensors[name].copy_(functional.all_reduce(tensors[name], "sum", dist.group.WORLD))


# %% asynchronously_from_the_last_name: pass
def reordered_reductions(tensors):
    handles = [
        dist.all_reduce(tensor, async_op=True)
        for _, tensor in sorted(tensors.items(), reverse=True)
    ]
    for handle in handles:
        handle.wait()


# %% gathers_the_dicts: pass
def reordered_reductions(tensors):
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, {name: t.clone() for name, t in tensors.items()})
    for name, tensor in tensors.items():
        tensor.copy_(sum(own[name] for own in everything))


# %% by_length_and_name: pass
def reordered_reductions(tensors):
    for name in sorted(tensors, key=lambda name: (-len(name), name)):
        dist.all_reduce(tensors[name], op=dist.ReduceOp.SUM)


# %% joins_an_empty_dict: crash exception
def reordered_reductions(tensors):
    ordered = [tensors[name] for name in sorted(tensors)]
    flat = torch.cat([tensor.view(-1) for tensor in ordered])
    dist.all_reduce(flat)
    for tensor, piece in zip(ordered, flat.split([tensor.numel() for tensor in ordered])):
        tensor.copy_(piece.view_as(tensor))


# %% adds_as_float32: wrong rounded
def reordered_reductions(tensors):
    for name in sorted(tensors):
        buffer = tensors[name].float()
        dist.all_reduce(buffer)
        tensors[name].copy_(buffer)


# %% empties_the_dict: wrong none
def reordered_reductions(tensors):
    for name in sorted(tensors):
        dist.all_reduce(tensors.pop(name))
