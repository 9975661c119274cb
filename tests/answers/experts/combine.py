"""Answers to ``combine`` beside those of its declaration; ``tests/answers/stored.py`` reads them.

Some bring a ``dispatch`` of their own, with another ``sent``.
"""
# ruff: noqa (learners write like this)

from types import SimpleNamespace

import torch
import torch.distributed as dist


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, arriving, leaving):
        ctx.sizes = leaving, arriving
        received = torch.empty(sum(arriving), rows.shape[1], dtype=rows.dtype)
        dist.all_to_all_single(received, rows.contiguous(), arriving, leaving)
        return received

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient, *ctx.sizes), None, None


def counted(expert, num_experts):
    leaving = torch.bincount(expert, minlength=num_experts)
    arriving = torch.empty_like(leaving)
    dist.all_to_all_single(arriving, leaving)
    return [t.view(dist.get_world_size(), -1) for t in (leaving, arriving)]


def inverse(order):
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    return places


def dispatched(tokens, expert, num_experts):
    """Right: the rows, how many each expert has, and what a ``combine`` below needs."""
    leaving, arriving = counted(expert, num_experts)
    order = expert.argsort(stable=True)
    come, go = arriving.sum(1).tolist(), leaving.sum(1).tolist()
    numbers = torch.arange(arriving.shape[1]).repeat(len(arriving))
    by_expert = numbers.repeat_interleave(arriving.flatten()).argsort(stable=True)
    rows = Exchange.apply(tokens[order], come, go)[by_expert]
    return rows, arriving.sum(0).tolist(), (order, by_expert, come, go)


def combined(outputs, order, by_expert, come, go):
    return Exchange.apply(outputs[inverse(by_expert)], go, come)[inverse(order)]


# %% rows_one_by_one: pass
def combine(outputs, sent):
    """Messages between two ranks, in one operator."""

    class Combined(torch.autograd.Function):
        @staticmethod
        def forward(ctx, outputs):
            parts = outputs[inverse(sent.by_expert)].split(sent.from_ranks)
            return exchanged(parts, sent.to_ranks)[inverse(sent.order)]

        @staticmethod
        def backward(ctx, gradient):
            parts = gradient[sent.order].split(sent.to_ranks)
            return exchanged(parts, sent.from_ranks)[sent.by_expert]

    def exchanged(parts, sizes):
        arrived = [outputs.new_empty(size, outputs.shape[1]) for size in sizes]
        calls = []
        for rank, (going, coming) in enumerate(zip(parts, arrived)):
            if rank == dist.get_rank():
                coming.copy_(going)
                continue
            if len(going):
                calls.append(dist.P2POp(dist.isend, going.contiguous(), rank))
            if len(coming):
                calls.append(dist.P2POp(dist.irecv, coming, rank))
        for call in dist.batch_isend_irecv(calls) if calls else []:
            call.wait()
        return torch.cat(arrived)

    return Combined.apply(outputs)


# %% in_parts_like_megatron: pass
def sorted_parts(rows, sizes, table):
    """Chunks (first, second) become chunks (second, first)."""
    parts = rows.split(sizes)
    count = len(table[0])
    return torch.cat([part for k in range(count) for part in parts[k::count]])


def dispatch(tokens, expert, num_experts):
    leaving, arriving = counted(expert, num_experts)
    order = expert.argsort(stable=True)
    splits = arriving.sum(1).tolist(), leaving.sum(1).tolist()
    rows = Exchange.apply(tokens[order], *splits)
    table = arriving.tolist()
    rows = sorted_parts(rows, [size for own in table for size in own], table)
    return rows, SimpleNamespace(
        counts=arriving.sum(0).tolist(), order=order, splits=splits, table=table
    )


def combine(outputs, sent):
    turned = [list(column) for column in zip(*sent.table)]
    rows = sorted_parts(outputs, [size for own in turned for size in own], turned)
    returned = Exchange.apply(rows, *sent.splits[::-1])
    result = torch.zeros_like(returned)
    return result.scatter(0, sent.order[:, None].expand_as(returned), returned)


# %% a_closure: pass
def dispatch(tokens, expert, num_experts):
    rows, counts, rest = dispatched(tokens, expert, num_experts)

    def sent(outputs):
        return combined(outputs, *rest)

    sent.counts = counts
    return rows, sent


def combine(outputs, sent):
    return sent(outputs)


# %% only_the_last_dispatch: crash exception
last = []


def dispatch(tokens, expert, num_experts):
    rows, counts, last[:] = dispatched(tokens, expert, num_experts)
    return rows, SimpleNamespace(counts=counts)


def combine(outputs, sent):
    return combined(outputs, *last)


# %% used_up: crash exception
def dispatch(tokens, expert, num_experts):
    rows, counts, rest = dispatched(tokens, expert, num_experts)
    return rows, SimpleNamespace(counts=counts, rest=[*rest])


def combine(outputs, sent):
    go, come, by_expert, order = [sent.rest.pop() for _ in range(4)]
    return combined(outputs, order, by_expert, come, go)


# %% twice_as_wide: wrong combine.too_many_bytes
def combine(outputs, sent):
    rows = outputs.repeat(1, 2)[inverse(sent.by_expert)]
    returned = Exchange.apply(rows, sent.to_ranks, sent.from_ranks)
    return returned[inverse(sent.order)][:, : outputs.shape[1]]
