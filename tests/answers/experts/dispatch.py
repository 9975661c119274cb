"""Answers to ``dispatch`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

from types import SimpleNamespace

import torch
import torch.distributed as dist
from exercises.experts.exchanging import Exchange, counted, sorting


def exchanged(rows, leaving, arriving, exchange=Exchange.apply):
    """Right, for rows that are sorted by expert."""
    rows = exchange(rows, arriving.sum(1).tolist(), leaving.sum(1).tolist())
    return rows[sorting(arriving)], arriving.sum(0).tolist()


# %% one_operator_for_all: pass
def dispatch(tokens, expert, num_experts):
    """Sorted, sent and sorted again in one operator, with objects and messages between two ranks."""

    class Dispatched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tokens, order, by_expert, arriving, leaving):
            ctx.saved = order, by_expert, arriving, leaving
            return swapped(tokens[order].split(leaving), arriving)[by_expert]

        @staticmethod
        def backward(ctx, gradient):
            order, by_expert, arriving, leaving = ctx.saved
            by_rank, tokens = torch.empty_like(gradient), gradient.new_empty(len(order), width)
            by_rank[by_expert] = gradient
            tokens[order] = swapped(by_rank.split(arriving), leaving)
            return tokens, None, None, None, None

    def swapped(parts, sizes):
        arrived = [parts[0].new_empty(size, width) for size in sizes]
        arrived[rank].copy_(parts[rank])
        calls = []
        for other in range(ranks):
            if other != rank:
                calls.append(dist.isend(parts[other].contiguous(), other))
                calls.append(dist.irecv(arrived[other], other))
        for call in calls:
            call.wait()
        return torch.cat(arrived)

    rank, ranks, width = dist.get_rank(), dist.get_world_size(), tokens.shape[1]
    own = num_experts // ranks
    chosen = [None] * ranks
    dist.all_gather_object(chosen, expert.tolist())
    lists = [[(e, i) for i, e in enumerate(each) if e // own == rank] for each in chosen]
    arriving = [len(each) for each in lists]
    flat = [e for each in lists for e, _ in sorted(each)]
    by_expert = sorted(range(len(flat)), key=flat.__getitem__)
    leaving = [chosen[rank].count(e) for e in range(num_experts)]
    leaving = [sum(leaving[r * own : (r + 1) * own]) for r in range(ranks)]
    order = sorted(range(len(expert)), key=chosen[rank].__getitem__)
    received = Dispatched.apply(tokens, order, by_expert, arriving, leaving)
    counts = tuple(flat.count(rank * own + e) for e in range(own))
    return received, SimpleNamespace(counts=counts)


# %% one_expert_after_another: pass
def dispatch(tokens, expert, num_experts):
    """An exchange for every expert that a rank holds."""
    world = dist.get_world_size()
    own = num_experts // world
    rows, counts = [], []
    for k in range(own):
        order = torch.cat([torch.where(expert == r * own + k)[0] for r in range(world)])
        leaving = torch.tensor([int((expert == r * own + k).sum()) for r in range(world)])
        arriving = torch.empty_like(leaving)
        dist.all_to_all_single(arriving, leaving)
        rows.append(Exchange.apply(tokens[order], arriving.tolist(), leaving.tolist()))
        counts.append(int(arriving.sum()))
    return torch.cat(rows), SimpleNamespace(counts=counts)


# %% with_functional_collectives: pass
def dispatch(tokens, expert, num_experts):
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    def exchange(rows, arriving, leaving):
        return all_to_all_single_autograd(rows.contiguous(), arriving, leaving, dist.group.WORLD)

    rows = tokens[expert.argsort(stable=True)]
    rows, counts = exchanged(rows, *counted(expert, num_experts), exchange)
    return rows, SimpleNamespace(counts=counts)


# %% alone_without_messages: pass
def dispatch(tokens, expert, num_experts):
    rows = tokens[expert.argsort(stable=True)]
    if dist.get_world_size() == 1:
        return rows, SimpleNamespace(counts=expert.bincount(minlength=num_experts).tolist())
    rows, counts = exchanged(rows, *counted(expert, num_experts))
    return rows, SimpleNamespace(counts=counts)


# %% counts_in_a_tensor: wrong wrong_type
def dispatch(tokens, expert, num_experts):
    rows = tokens[expert.argsort(stable=True)]
    rows, counts = exchanged(rows, *counted(expert, num_experts))
    return rows, SimpleNamespace(counts=torch.tensor(counts))


# %% no_counts: wrong none
def dispatch(tokens, expert, num_experts):
    rows = tokens[expert.argsort(stable=True)]
    return exchanged(rows, *counted(expert, num_experts))


# %% through_float32: wrong rounded
def dispatch(tokens, expert, num_experts):
    rows = tokens[expert.argsort(stable=True)].float()
    rows, counts = exchanged(rows, *counted(expert, num_experts))
    return rows.to(tokens.dtype), SimpleNamespace(counts=counts)


# %% sorts_the_experts_in_place: wrong dispatch.input_changed
def dispatch(tokens, expert, num_experts):
    order = expert.argsort(stable=True)
    expert.copy_(expert[order])
    rows, counts = exchanged(tokens[order], *counted(expert, num_experts))
    return rows, SimpleNamespace(counts=counts)


# %% largest_expert_first: wrong wrong_values
def dispatch(tokens, expert, num_experts):
    rows = tokens[expert.argsort(stable=True)]
    rows, counts = exchanged(rows, *counted(expert, num_experts))
    return torch.cat(rows.split(counts)[::-1]), SimpleNamespace(counts=counts)
