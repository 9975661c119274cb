"""Answers to ``reordered_reductions`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from torch import Tensor

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


# %% five_flat: pass

# style: one message: concatenates in the order of the names and copies back


@torch.no_grad()
def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    if not tensors:
        return
    ordered = [tensor for _, tensor in sorted(tensors.items())]
    flat = torch.cat([tensor.reshape(-1) for tensor in ordered])
    dist.all_reduce(flat)
    for tensor, part in zip(ordered, flat.split([t.numel() for t in ordered]), strict=True):
        tensor.copy_(part.view_as(tensor))


# %% five_gather_and_add: pass

# style: unusual: gathers the dicts as objects and adds by name, reverse order for no reason


def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {name: t.detach().cpu() for name, t in tensors.items()})
    with torch.no_grad():
        for name in reversed(sorted(tensors)):
            result = everyone[0][name].clone()
            for other in everyone[1:]:
                result += other[name]
            tensors[name].copy_(result)


# %% five_order_of_rank0: pass

# style: rank 0 tells its order to all, then asynchronous all-reduces


def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    order = [list(tensors)]
    dist.broadcast_object_list(order, src=0)
    works = [dist.all_reduce(tensors[name], async_op=True) for name in order[0]]
    for work in works:
        work.wait()


# %% five_sorted_names: pass

# style: the smallest repair: sorted by name


def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    for name in sorted(tensors):
        dist.all_reduce(tensors[name])


# %% largest_instead_of_sum: wrong wrong_values


def reordered_reductions(tensors):
    for name in sorted(tensors):
        dist.all_reduce(tensors[name], op=dist.ReduceOp.MAX)


# %% five_empty_fails: crash exception

# mistake: torch.cat of nothing fails for an empty dict


def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    flat = torch.cat([tensors[name].view(-1) for name in sorted(tensors)])
    dist.all_reduce(flat)
    start = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()


# %% five_float_buffer: wrong rounded

# mistake: a float32 buffer for all dtypes: large integers and float64 lose digits


def reordered_reductions(tensors: dict[str, Tensor]) -> None:
    for name in sorted(tensors):
        buffer = tensors[name].float()
        dist.all_reduce(buffer)
        tensors[name].copy_(buffer)
