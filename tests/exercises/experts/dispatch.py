"""``experts.dispatch``: every token to the rank of its expert, sorted by expert there."""

from types import SimpleNamespace

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise
from multigpu.checking.probes import handles_are_waited_for

from .exchanging import Exchange, all_of_it, counted, dispatched, exchanged, sorting
from .routing import (
    LEFT_OUT,
    each_routing,
    given,
    gradient_back,
    inputs_stay,
    noted,
    received_by,
    routes,
    sends_once,
    tokens_of,
    turn,
    weighted_sum,
    whose,
)

dispatch = exercise(
    "experts.dispatch",
    expects="every rank gets its experts' tokens, sorted by expert, and their gradients come back",
)


@dispatch.cases
def cases():
    for world in (3, 2, 4, 1):
        yield from each_routing(world)


@dispatch.drive
def drive(submission, case, rank):
    came, times, made, changed = {}, {}, [], []
    for number in range(len(case.calls)):
        tokens, expert = given(case, number, rank)
        before = tokens.detach().clone(), expert.clone()
        with noted(times, "dispatch"):
            received, sent = submission.dispatch(tokens, expert, case.experts)
        named = zip(("tokens", "expert"), (tokens.detach(), expert), before, strict=True)
        changed += [name for name, now, old in named if not torch.equal(now, old)]
        came[f"received{turn(number)}"] = received
        counts = getattr(sent, "counts", None)
        came[f"sent.counts{turn(number)}"] = [*counts] if isinstance(counts, tuple) else counts
        made.append((number, tokens, received))
    for number, tokens, received in made if case.gradient else []:
        if received.requires_grad:
            with noted(times, "dispatch"):
                weighted_sum(case, rank, received).backward()
        if len(tokens):  # that of no tokens may be missing
            came[f"the gradient of tokens{turn(number)}"] = tokens.grad
    return came | {"watched": {"times": times, "changed": changed}}


@dispatch.expected
def expected(case):
    results = []
    for rank in range(case.world):
        due = {}
        for number, chosen in enumerate(case.calls):
            due[f"received{turn(number)}"] = received_by(case, number, rank)
            due[f"sent.counts{turn(number)}"] = [*map(len, routes(case, number, rank))]
            if case.gradient and chosen[rank]:
                due[f"the gradient of tokens{turn(number)}"] = gradient_back(case, number, rank)
        results.append(due)
    return results


@dispatch.reading
def reading(case, tensor):
    return whose(case, tensor, "tokens", tokens_of)


handles_are_waited_for(dispatch)
sends_once(dispatch, "dispatch", lambda case: case.width * case.dtype.itemsize)
inputs_stay(dispatch, "tokens", "expert")


# --- right answers -------------------------------------------------------------------------------


@dispatch.right
def sends_the_numbers_of_the_experts(tokens, expert, num_experts):
    """As one tensor of integers beside the tokens; the sizes are gathered from all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own = num_experts // ranks
    order = torch.sort(expert, stable=True).indices
    sizes = torch.zeros(ranks, dtype=torch.int64, device=expert.device)
    sizes.index_add_(0, expert // own, torch.ones_like(expert))
    everyones = [torch.empty_like(sizes) for _ in range(ranks)]
    dist.all_gather(everyones, sizes)
    to_ranks, from_ranks = sizes.tolist(), [each[rank].item() for each in everyones]
    numbers = expert.new_empty(sum(from_ranks))
    dist.all_to_all_single(numbers, expert[order], from_ranks, to_ranks)
    by_rank = Exchange.apply(tokens[order], from_ranks, to_ranks)
    by_expert = torch.sort(numbers, stable=True).indices
    counts = [int((numbers == rank * own + e).sum()) for e in range(own)]
    return by_rank[by_expert], SimpleNamespace(counts=counts)


# --- mistakes ------------------------------------------------------------------------------------


@dispatch.mistake(
    "sorted_by_rank",
    "the rows are in the order in which they arrived: those of rank 0 first, for all experts.",
    fix="Sort the rows by expert once more after they have arrived, with a stable sort.",
)
def not_sorted_on_arrival(tokens, expert, num_experts):
    leaving, arriving = counted(expert, num_experts)
    order = torch.argsort(expert, stable=True)
    sent = all_of_it(order, torch.arange(int(arriving.sum())), leaving, arriving)
    return exchanged(tokens[order], sent), sent


@dispatch.mistake(
    "not_sorted_before",
    "the tokens were not sorted: all_to_all_single takes the first rows for rank 0.",
    fix="Sort the tokens by expert first: tokens[expert.argsort(stable=True)].",
)
def sends_tokens_as_they_are(tokens, expert, num_experts):
    leaving, arriving = counted(expert, num_experts)
    sent = all_of_it(torch.arange(len(expert)), sorting(arriving), leaving, arriving)
    return exchanged(tokens, sent)[sent.by_expert], sent


@dispatch.mistake(
    "other_rank",
    "the tokens went to rank expert % {n}, as if experts were dealt to the ranks one by one.",
    fix="Expert e is on rank e // {own}: experts that follow each other share a rank.",
)
def deals_experts_out(tokens, expert, num_experts):
    ranks = dist.get_world_size()
    own = num_experts // ranks
    return dispatched(tokens, expert % ranks * own + expert // ranks, num_experts, exchanged)


@dispatch.mistake(
    "detached",
    "the tokens were sent by a collective of torch.distributed, which autograd does not see.",
    fix="Write a torch.autograd.Function whose backward sends the gradients the other way.",
)
def without_backward(tokens, expert, num_experts):
    def exchange(rows, sent):
        received = rows.new_empty(sum(sent.from_ranks), rows.shape[1])
        dist.all_to_all_single(received, rows.detach(), sent.from_ranks, sent.to_ranks)
        return received

    return dispatched(tokens, expert, num_experts, exchange)


@dispatch.mistake(
    "sizes_not_swapped",
    "the two lists of sizes are in the wrong order, either in forward or in backward.",
    fix="First the numbers of rows that come, then those that leave; in backward the other way.",
    status="crash",
)
def same_sizes_in_backward(tokens, expert, num_experts):
    class Same(Exchange):
        @staticmethod
        def backward(ctx, gradient):
            return Exchange.apply(gradient, *ctx.sizes[::-1]), None, None

    def exchange(rows, sent):
        return Same.apply(rows, sent.from_ranks, sent.to_ranks)

    return dispatched(tokens, expert, num_experts, exchange)


@dispatch.mistake(
    "sizes_differ",
    "a rank sends another number of rows to a rank than that one expects. Without split sizes"
    " each rank gets as many rows; and how many rows come is not how many this rank sends.",
    fix="Exchange the counts first: all_to_all_single takes how many rows come, and how many go.",
    status="crash",
)
def without_sizes(tokens, expert, num_experts):
    def exchange(rows, sent):
        received = torch.empty_like(rows)
        dist.all_to_all_single(received, rows.detach())
        return received

    return dispatched(tokens, expert, num_experts, exchange)


@dispatch.mistake(
    "too_few_counts",
    "bincount ends with the largest number that is there, so the ranks' counts differ in size.",
    fix="bincount(minlength=num_experts) counts the missing experts as zeros.",
    status="crash",
)
def counts_only_what_is_there(tokens, expert, num_experts):
    leaving = torch.bincount(expert)
    dist.all_to_all_single(torch.empty_like(leaving), leaving)
    return dispatched(tokens, expert, num_experts, exchanged)


@dispatch.mistake(**LEFT_OUT)
def returns_early(tokens, expert, num_experts):
    if not len(tokens):
        own = num_experts // dist.get_world_size()
        return tokens, SimpleNamespace(counts=[0] * own)
    return dispatched(tokens, expert, num_experts, exchanged)


@dispatch.breaks("too_many_bytes")
def sends_twice(tokens, expert, num_experts):
    def exchange(rows, sent):
        exchanged(rows.detach(), sent)
        return exchanged(rows, sent)

    return dispatched(tokens, expert, num_experts, exchange)
