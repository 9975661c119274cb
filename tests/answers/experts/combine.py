"""Answers to ``combine`` beside those of its declaration; ``tests/answers/stored.py`` reads them.

Some bring a ``dispatch`` of their own, with another ``sent``.
"""
# ruff: noqa (learners write like this)

from types import SimpleNamespace

import torch
import torch.distributed as dist
from exercises.experts.exchanging import Exchange, counted, dispatched, exchanged
from exercises.experts.combine import inverse, with_inverse_permutations


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
    rows, order = dispatched(tokens, expert, num_experts, exchanged)

    def sent(outputs):
        return with_inverse_permutations(outputs, order)

    sent.counts = order.counts
    return rows, sent


def combine(outputs, sent):
    return sent(outputs)


# %% only_the_last_dispatch: crash exception
last = []


def dispatch(tokens, expert, num_experts):
    rows, sent = dispatched(tokens, expert, num_experts, exchanged)
    last[:] = [sent]
    return rows, SimpleNamespace(counts=sent.counts)


def combine(outputs, sent):
    return with_inverse_permutations(outputs, *last)


# %% used_up: crash exception
def dispatch(tokens, expert, num_experts):
    rows, sent = dispatched(tokens, expert, num_experts, exchanged)
    return rows, SimpleNamespace(counts=sent.counts, rest=[sent])


def combine(outputs, sent):
    return with_inverse_permutations(outputs, sent.rest.pop())
