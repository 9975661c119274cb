"""Answers to ``average_gradients``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from harness import right, wrong


def trained(model):
    """All trainable parameters, with zeros where there is no gradient."""
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            yield p


@wrong("average_gradients.divided_by_2")
def divides_by_the_others(model):
    for p in trained(model):
        dist.all_reduce(p.grad)
        p.grad /= max(1, dist.get_world_size() - 1)


@wrong("average_gradients.not_waited")
def does_not_wait(model):
    for p in trained(model):
        dist.all_reduce(p.grad, async_op=True)
        p.grad /= dist.get_world_size()


@wrong("mismatch")
def in_another_order_on_every_rank(model):
    parameters = list(trained(model))
    first = dist.get_rank() % len(parameters)
    for p in parameters[first:] + parameters[:first]:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


@wrong("none")
def clears_too_early(model):
    for p in trained(model):
        dist.all_reduce(p.grad)
        p.grad = p.grad.div_(dist.get_world_size()) if dist.get_rank() == 0 else None


@wrong("wrong_values")
def mixes_the_pieces(model):
    parameters = list(trained(model))
    flat = torch.cat([p.grad.flatten() for p in parameters]) / dist.get_world_size()
    dist.all_reduce(flat)
    start = 0
    for p in parameters:
        p.grad = flat[start : start + p.numel()].view_as(p)
        start += 1


@wrong("wrong_values")
def mean_of_all_numbers(model):
    for p in trained(model):
        dist.all_reduce(p.grad)
        p.grad[...] = p.grad.mean()


@wrong("refused_name")
def borrows_a_hook(model):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    for p in trained(model):
        default_hooks.allreduce_hook(None, p.grad)


@wrong("rounded")
def travels_as_float32(model):
    for p in trained(model):
        arrived = p.grad.float()
        dist.all_reduce(arrived)
        p.grad = arrived.to(p.grad.dtype) / dist.get_world_size()


@wrong("rounded")
def travels_in_half_precision(model):
    for p in trained(model):
        half = p.grad.half()
        dist.all_reduce(half)
        p.grad = half.to(p.grad.dtype) / dist.get_world_size()


@wrong("rounded")
def one_flat_tensor_in_bfloat16(model):
    parameters = list(trained(model))
    flat = torch.cat([p.grad.flatten() for p in parameters]).bfloat16()
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, piece in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = piece.view_as(p).to(p.dtype)


@wrong("average_gradients.nothing_sent")
def goes_through_trained_twice(model):
    parameters = trained(model)
    n = sum(p.numel() for p in parameters)
    for p in parameters:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


@wrong("average_gradients.not_averaged")
def writes_back_from_a_generator_that_is_used_up(model):
    parameters = trained(model)
    flat = torch.cat([p.grad.flatten() for p in parameters]) / dist.get_world_size()
    dist.all_reduce(flat)
    start = 0
    for p in parameters:
        p.grad = flat[start : start + p.numel()].view_as(p)
        start += p.numel()


@wrong("average_gradients.first_left_out")
def asks_the_first_parameter_for_its_device(model):
    parameters = model.parameters()
    device = next(parameters).device
    world_size = torch.tensor(dist.get_world_size(), device=device)
    for p in parameters:
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= world_size


@right
def all_started_at_once(model):
    handles = []
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        handles.append(dist.all_reduce(p.grad.div_(dist.get_world_size()), async_op=True))
    for handle in handles:
        handle.wait()


@right
def gathers_and_adds_up(model):
    for p in trained(model):
        grads = [torch.empty_like(p.grad) for _ in range(dist.get_world_size())]
        dist.all_gather(grads, p.grad)
        p.grad = torch.stack(grads).mean(dim=0)


@right
def tied_ones_twice_which_does_no_harm(model):
    for name, p in model.named_parameters(remove_duplicate=False):
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.grad)


@right
def a_share_in_float32(model):
    """A quotient of whole-number tensors."""
    share = 1 / torch.tensor(dist.get_world_size())
    for p in trained(model):
        p.grad *= share
        dist.all_reduce(p.grad)
