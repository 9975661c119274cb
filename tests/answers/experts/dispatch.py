"""Answers to ``dispatch`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

from collections import namedtuple
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


def sorting(arriving):
    numbers = torch.arange(arriving.shape[1]).repeat(len(arriving))
    return torch.argsort(numbers.repeat_interleave(arriving.flatten()), stable=True)


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


# %% joins_parts_of_experts: pass


def dispatch(tokens, expert, num_experts):
    leaving, arriving = counted(expert, num_experts)
    order = torch.cat([torch.nonzero(expert == e).flatten() for e in range(num_experts)])
    sizes = arriving.sum(1).tolist()
    by_rank = Exchange.apply(tokens[order], sizes, leaving.sum(1).tolist())
    parts = by_rank.split(arriving.flatten().tolist())
    rows = [part for e in range(arriving.shape[1]) for part in parts[e :: arriving.shape[1]]]
    return torch.cat(rows), SimpleNamespace(counts=arriving.sum(0).tolist())


# %% places_by_one_hot: pass


def dispatch(tokens, expert, num_experts):
    """As in GShard: the place of a token in its expert's rows is a cumulated sum."""
    mask = torch.nn.functional.one_hot(expert, num_experts)
    leaving = mask.sum(0)
    first = leaving.cumsum(0) - leaving
    place = first[expert] + (mask.cumsum(0) * mask).sum(1) - 1
    sorted_tokens = torch.zeros_like(tokens).index_copy(0, place, tokens)
    world = dist.get_world_size()
    table = [torch.empty_like(leaving) for _ in range(world)]
    dist.all_gather(table, leaving)
    own = num_experts // world
    mine = slice(dist.get_rank() * own, dist.get_rank() * own + own)
    arriving = torch.stack(table)[:, mine]
    rows = Exchange.apply(
        sorted_tokens, arriving.sum(1).tolist(), leaving.view(world, own).sum(1).tolist()
    )
    Sent = namedtuple("Sent", "counts place arriving")
    return rows[sorting(arriving)], Sent(arriving.sum(0).tolist(), place, arriving)


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

    leaving, arriving = counted(expert, num_experts)
    rows = all_to_all_single_autograd(
        tokens[expert.argsort(stable=True)].contiguous(),
        arriving.sum(1).tolist(),
        leaving.sum(1).tolist(),
        dist.group.WORLD,
    )
    return rows[sorting(arriving)], SimpleNamespace(counts=arriving.sum(0).tolist())


# %% alone_without_messages: pass


def dispatch(tokens, expert, num_experts):
    if dist.get_world_size() == 1:
        counts = expert.bincount(minlength=num_experts).tolist()
        return tokens[expert.argsort(stable=True)], SimpleNamespace(counts=counts)
    leaving, arriving = counted(expert, num_experts)
    rows = tokens[expert.argsort(stable=True)]
    rows = Exchange.apply(rows, arriving.sum(1).tolist(), leaving.sum(1).tolist())
    return rows[sorting(arriving)], SimpleNamespace(counts=arriving.sum(0).tolist())


# %% counts_of_all_experts: wrong wrong_count


def dispatch(tokens, expert, num_experts):
    leaving, arriving = counted(expert, num_experts)
    rows = tokens[expert.argsort(stable=True)]
    rows = Exchange.apply(rows, arriving.sum(1).tolist(), leaving.sum(1).tolist())
    return rows[sorting(arriving)], SimpleNamespace(counts=leaving.flatten().tolist())


# %% counts_in_a_tensor: wrong wrong_type


def dispatch(tokens, expert, num_experts):
    leaving, arriving = counted(expert, num_experts)
    rows = tokens[expert.argsort(stable=True)]
    rows = Exchange.apply(rows, arriving.sum(1).tolist(), leaving.sum(1).tolist())
    return rows[sorting(arriving)], SimpleNamespace(counts=arriving.sum(0))


# %% no_counts: wrong dispatch.no_counts


def dispatch(tokens, expert, num_experts):
    leaving, arriving = counted(expert, num_experts)
    rows = tokens[expert.argsort(stable=True)]
    rows = Exchange.apply(rows, arriving.sum(1).tolist(), leaving.sum(1).tolist())
    return rows[sorting(arriving)], arriving.sum(0).tolist()


# %% nothing_is_sent: wrong wrong_shape


def dispatch(tokens, expert, num_experts):
    rows = tokens[expert.argsort(stable=True)]
    own = num_experts // dist.get_world_size()
    counts = expert.bincount(minlength=num_experts).view(-1, own)[dist.get_rank()]
    return rows, SimpleNamespace(counts=counts.tolist())


# %% through_float32: wrong rounded


def dispatch(tokens, expert, num_experts):
    leaving, arriving = counted(expert, num_experts)
    rows = tokens[expert.argsort(stable=True)].float()
    rows = Exchange.apply(rows, arriving.sum(1).tolist(), leaving.sum(1).tolist())
    rows = rows[sorting(arriving)].to(tokens.dtype)
    return rows, SimpleNamespace(counts=arriving.sum(0).tolist())


# %% thrown_handle: wrong dispatch.not_waited


def dispatch(tokens, expert, num_experts):
    leaving = torch.bincount(expert, minlength=num_experts)
    dist.all_to_all_single(torch.empty_like(leaving), leaving, async_op=True)
    leaving, arriving = counted(expert, num_experts)
    rows = tokens[expert.argsort(stable=True)]
    rows = Exchange.apply(rows, arriving.sum(1).tolist(), leaving.sum(1).tolist())
    return rows[sorting(arriving)], SimpleNamespace(counts=arriving.sum(0).tolist())


# %% sorts_the_experts_in_place: wrong dispatch.input_changed


def dispatch(tokens, expert, num_experts):
    leaving, arriving = counted(expert, num_experts)
    order = expert.argsort(stable=True)
    expert.copy_(expert[order])
    rows = Exchange.apply(tokens[order], arriving.sum(1).tolist(), leaving.sum(1).tolist())
    return rows[sorting(arriving)], SimpleNamespace(counts=arriving.sum(0).tolist())


# %% largest_expert_first: wrong wrong_values


def dispatch(tokens, expert, num_experts):
    leaving, arriving = counted(expert, num_experts)
    rows = tokens[expert.argsort(stable=True)]
    rows = Exchange.apply(rows, arriving.sum(1).tolist(), leaving.sum(1).tolist())
    counts = arriving.sum(0).tolist()
    parts = rows[sorting(arriving)].split(counts)
    return torch.cat(parts[::-1]), SimpleNamespace(counts=counts)


# %% own_sizes_both_ways: crash dispatch.sizes_differ


def dispatch(tokens, expert, num_experts):
    leaving, arriving = counted(expert, num_experts)
    rows = tokens[expert.argsort(stable=True)]
    rows = Exchange.apply(rows, leaving.sum(1).tolist(), leaving.sum(1).tolist())
    return rows[sorting(arriving)], SimpleNamespace(counts=arriving.sum(0).tolist())


# %% buffer_of_the_default_dtype: crash exception


def dispatch(tokens, expert, num_experts):
    class Single(Exchange):
        @staticmethod
        def forward(ctx, rows, arriving, leaving):
            ctx.sizes = leaving, arriving
            received = torch.empty(sum(arriving), rows.shape[1])
            dist.all_to_all_single(received, rows, arriving, leaving)
            return received

    leaving, arriving = counted(expert, num_experts)
    rows = tokens[expert.argsort(stable=True)].contiguous()
    rows = Single.apply(rows, arriving.sum(1).tolist(), leaving.sum(1).tolist())
    return rows[sorting(arriving)], SimpleNamespace(counts=arriving.sum(0).tolist())


# %% gradients_of_the_sum: wrong wrong_values


def dispatch(tokens, expert, num_experts):
    class Summed(Exchange):
        @staticmethod
        def backward(ctx, gradient):
            total = gradient.sum()
            dist.all_reduce(total)
            return Exchange.apply(gradient, *ctx.sizes) * 0 + total, None, None

    leaving, arriving = counted(expert, num_experts)
    rows = tokens[expert.argsort(stable=True)]
    rows = Summed.apply(rows, arriving.sum(1).tolist(), leaving.sum(1).tolist())
    return rows[sorting(arriving)], SimpleNamespace(counts=arriving.sum(0).tolist())
