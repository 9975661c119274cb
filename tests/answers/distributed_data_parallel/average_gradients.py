"""Answers to ``average_gradients`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from exercises.distributed_data_parallel.given_gradients import trained


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


# %% four_avg_op: pass
# Style: the shortest one, ReduceOp.AVG divides (gloo of torch 2.13 can do it too).


def average_gradients(model):
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)


# %% does_not_wait: wrong average_gradients.not_waited
def average_gradients(model):
    for p in trained(model):
        dist.all_reduce(p.grad, async_op=True)
        p.grad /= dist.get_world_size()


# %% four_divides_before_wait: wrong average_gradients.changed_while_sending
# Mistake: divides right after starting, before the asynchronous all-reduce is done (a race).


def average_gradients(model):
    works = []
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            works.append(dist.all_reduce(p.grad, async_op=True))
            p.grad /= dist.get_world_size()
    for work in works:
        work.wait()


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
