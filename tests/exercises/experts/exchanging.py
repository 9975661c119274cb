"""What answers are made of: rows that go to all ranks and come from all, and how to sort them."""

from types import SimpleNamespace

import torch
import torch.distributed as dist


class Exchange(torch.autograd.Function):
    """Rows to all ranks and from all ranks."""

    @staticmethod
    def forward(ctx, rows, arriving, leaving):
        ctx.sizes = leaving, arriving
        received = torch.empty(sum(arriving), rows.shape[1], dtype=rows.dtype, device=rows.device)
        dist.all_to_all_single(received, rows.contiguous(), arriving, leaving)
        return received

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient, *ctx.sizes), None, None


def counted(expert, num_experts):
    """Of this rank's tokens, and of those that arrive: a row for each rank, a column per expert."""
    leaving = torch.bincount(expert, minlength=num_experts)
    arriving = torch.empty_like(leaving)
    dist.all_to_all_single(arriving, leaving)
    return [t.view(dist.get_world_size(), -1) for t in (leaving, arriving)]


def sorting(arriving):
    """How to sort rows that came by rank, and by expert inside of a rank."""
    numbers = torch.arange(arriving.shape[1], device=arriving.device).repeat(len(arriving))
    return torch.argsort(numbers.repeat_interleave(arriving.flatten()), stable=True)


def all_of_it(order, by_expert, leaving, arriving):
    """What ``combine`` needs."""
    return SimpleNamespace(
        counts=arriving.sum(0).tolist(),
        order=order,
        by_expert=by_expert,
        to_ranks=leaving.sum(1).tolist(),
        from_ranks=arriving.sum(1).tolist(),
    )


def dispatched(tokens, expert, num_experts, exchange):
    """Right if ``exchange(rows, sent)`` is."""
    leaving, arriving = counted(expert, num_experts)
    order = torch.argsort(expert, stable=True)
    sent = all_of_it(order, sorting(arriving), leaving, arriving)
    return exchange(tokens[order], sent)[sent.by_expert], sent


def exchanged(rows, sent):
    return Exchange.apply(rows, sent.from_ranks, sent.to_ranks)
