"""Answers to ``average_gradients`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from collections import defaultdict
from torch import nn


def trained(model):
    """All trainable parameters, with zeros where there is no gradient."""
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            yield p


# %% all_started_at_once: pass


def average_gradients(model):
    handles = []
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        handles.append(dist.all_reduce(p.grad.div_(dist.get_world_size()), async_op=True))
    for handle in handles:
        handle.wait()


# %% gathers_and_adds_up: pass


def average_gradients(model):
    for p in trained(model):
        grads = [torch.empty_like(p.grad) for _ in range(dist.get_world_size())]
        dist.all_gather(grads, p.grad)
        p.grad = torch.stack(grads).mean(dim=0)


# %% tied_ones_twice_which_does_no_harm: pass


def average_gradients(model):
    for name, p in model.named_parameters(remove_duplicate=False):
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.grad)


# %% a_share_in_float32: pass


def average_gradients(model):
    """A quotient of whole-number tensors."""
    share = 1 / torch.tensor(dist.get_world_size())
    for p in trained(model):
        p.grad *= share
        dist.all_reduce(p.grad)


# %% four_all_gather: pass

# Style: unusual, all_gather of everyone's gradient and a mean over the stack; None kept where nobody has one.


def average_gradients(model: nn.Module) -> None:
    size = dist.get_world_size()
    params = [p for p in model.parameters() if p.requires_grad]
    if not params:
        return
    has = torch.tensor([p.grad is not None for p in params], dtype=torch.int64)
    has = has.to(params[0].device)
    dist.all_reduce(has, op=dist.ReduceOp.MAX)
    for p, anybody in zip(params, has.tolist(), strict=True):
        if not anybody:
            continue
        mine = torch.zeros_like(p) if p.grad is None else p.grad.detach()
        mine = mine.contiguous()
        everyone = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(everyone, mine)
        p.grad = torch.stack(everyone).sum(dim=0) / size


# %% four_async_predivided: pass

# Style: divide first, start all all-reduces asynchronously, wait for all at the end.


def average_gradients(model: nn.Module) -> None:
    n = dist.get_world_size()
    works = []
    with torch.no_grad():
        for _, p in model.named_parameters():
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad.div(n).contiguous()
                works.append(dist.all_reduce(p.grad, async_op=True))
    for work in works:
        work.wait()


# %% four_avg_op: pass

# Style: the shortest one, ReduceOp.AVG divides (gloo of torch 2.13 can do it too).


def average_gradients(model: nn.Module) -> None:
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)


# %% four_flat_per_dtype: pass

# Style: one flat vector for each dtype and device, one collective each, copied back.


def average_gradients(model: nn.Module) -> None:
    groups = defaultdict(list)
    for p in model.parameters():
        if p.requires_grad:
            groups[p.dtype, p.device].append(p)
    for params in groups.values():
        flat = torch.cat(
            [
                (torch.zeros_like(p) if p.grad is None else p.grad).detach().reshape(-1)
                for p in params
            ]
        )
        dist.all_reduce(flat, op=dist.ReduceOp.SUM)
        flat.div_(dist.get_world_size())
        for p, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
            p.grad = part.view_as(p).clone()


# %% four_loop: pass

# Style: the simplest loop, one blocking all_reduce for each parameter.


def average_gradients(model: nn.Module) -> None:
    world_size = dist.get_world_size()
    for p in model.parameters():
        if not p.requires_grad:
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= world_size


# %% four_flat_promotes: pass

# Mistake: one flat vector for all dtypes; torch.cat promotes, and .grad gets the wrong dtype (error) in mixed models.


def average_gradients(model: nn.Module) -> None:
    params = [p for p in model.parameters() if p.requires_grad]
    flat = torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in params]
    )
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    start = 0
    for p in params:
        p.grad = flat[start : start + p.numel()].view_as(p)
        start += p.numel()


# %% does_not_wait: wrong average_gradients.not_waited


def average_gradients(model):
    for p in trained(model):
        dist.all_reduce(p.grad, async_op=True)
        p.grad /= dist.get_world_size()


# %% in_another_order_on_every_rank: wrong mismatch


def average_gradients(model):
    parameters = list(trained(model))
    first = dist.get_rank() % len(parameters)
    for p in parameters[first:] + parameters[:first]:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


# %% clears_too_early: wrong none


def average_gradients(model):
    for p in trained(model):
        dist.all_reduce(p.grad)
        p.grad = p.grad.div_(dist.get_world_size()) if dist.get_rank() == 0 else None


# %% mixes_the_pieces: wrong wrong_values


def average_gradients(model):
    parameters = list(trained(model))
    flat = torch.cat([p.grad.flatten() for p in parameters]) / dist.get_world_size()
    dist.all_reduce(flat)
    start = 0
    for p in parameters:
        p.grad = flat[start : start + p.numel()].view_as(p)
        start += 1


# %% borrows_a_hook: wrong refused_name


def average_gradients(model):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    for p in trained(model):
        default_hooks.allreduce_hook(None, p.grad)


# %% travels_as_float32: wrong rounded


def average_gradients(model):
    for p in trained(model):
        arrived = p.grad.float()
        dist.all_reduce(arrived)
        p.grad = arrived.to(p.grad.dtype) / dist.get_world_size()


# %% four_divides_before_wait: wrong average_gradients.changed_while_sending

# Mistake: divides right after starting, before the asynchronous all-reduce is done (a race).


def average_gradients(model: nn.Module) -> None:
    works = []
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            works.append(dist.all_reduce(p.grad, async_op=True))
            p.grad /= dist.get_world_size()
    for work in works:
        work.wait()


# %% four_set_order: wrong mismatch

# Mistake: goes through a set of parameters; the order depends on addresses and differs between ranks.


def average_gradients(model: nn.Module) -> None:
    for p in set(model.parameters()):
        if not p.requires_grad:
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
