"""Answers to ``weighted_average_gradients``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from harness import right, wrong


def total_of(num_samples):
    total = torch.tensor(num_samples)
    dist.all_reduce(total)
    return total.item()


def trainable(model):
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            yield p


@wrong("rounded")
def travels_as_float32(model, num_samples):
    total = total_of(num_samples)
    for p in trainable(model):
        arrived = (p.grad * num_samples).float()
        dist.all_reduce(arrived)
        p.grad = arrived.to(p.grad.dtype) / total


@wrong("weighted_average_gradients.ranks_count_equally")
def the_plain_average(model, num_samples):
    for p in trainable(model):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


@wrong("weighted_average_gradients.ranks_count_equally")
def the_average_over_ranks_with_rows(model, num_samples):
    busy = total_of(int(num_samples > 0))
    for p in trainable(model):
        dist.all_reduce(p.grad)
        p.grad /= busy


@wrong("weighted_average_gradients.only_added")
def never_divides(model, num_samples):
    for p in trainable(model):
        dist.all_reduce(p.grad)


@wrong("weighted_average_gradients.never_divided")
def weighs_and_never_divides(model, num_samples):
    for p in trainable(model):
        p.grad *= num_samples
        dist.all_reduce(p.grad)


@wrong("weighted_average_gradients.only_weighted")
def weighs_and_never_adds(model, num_samples):
    total = total_of(num_samples)
    for p in trainable(model):
        p.grad *= num_samples / total


@wrong("weighted_average_gradients.none_skipped")
def skips_and_meets_at_a_barrier(model, num_samples):
    total = total_of(num_samples)
    for p in model.parameters():
        if p.grad is not None:
            p.grad *= num_samples / total
            dist.all_reduce(p.grad)
    dist.barrier()


@wrong("weighted_average_gradients.missing_stays_none")
def takes_part_but_keeps_nothing(model, num_samples):
    total = total_of(num_samples)
    for p in model.parameters():
        if p.requires_grad:
            part = torch.zeros_like(p) if p.grad is None else p.grad * num_samples / total
            dist.all_reduce(part)
            if p.grad is not None:
                p.grad = part


@wrong("wrong_values")
def the_shares_the_wrong_way_round(model, num_samples):
    total = total_of(num_samples)
    for p in trainable(model):
        p.grad *= 1 - num_samples / total
        dist.all_reduce(p.grad)


@wrong("wrong_values")
def every_parameter_the_same(model, num_samples):
    total = total_of(num_samples)
    idle = [n for n, p in model.named_parameters() if n.startswith("idle")]
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        if p.grad is None:
            p.grad = torch.ones_like(p) if name in idle else torch.zeros_like(p)
        p.grad *= num_samples / total
        dist.all_reduce(p.grad)


@right
def sum_first_divide_last(model, num_samples):
    for p in trainable(model):
        p.grad = p.grad * num_samples
        dist.all_reduce(p.grad)
    total = total_of(num_samples)
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= total


@right
def everything_at_the_same_time(model, num_samples):
    total = total_of(num_samples)
    handles = []
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        p.grad.mul_(num_samples).div_(total)
        handles.append(dist.all_reduce(p.grad, async_op=True))
    for handle in handles:
        handle.wait()


@right
def scaled_by_the_number_of_ranks_then_averaged(model, num_samples):
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, num_samples)
    for p in trainable(model):
        p.grad *= num_samples * dist.get_world_size() / sum(counts)
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


@right
def a_share_in_float32(model, num_samples):
    """A quotient of whole-number tensors."""
    total = torch.tensor(num_samples)
    dist.all_reduce(total)
    for p in trainable(model):
        p.grad *= num_samples / total
        dist.all_reduce(p.grad)
