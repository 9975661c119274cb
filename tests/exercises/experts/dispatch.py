"""``experts.dispatch``: every token to the rank of its expert, sorted by expert there."""

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from multigpu.checking.declaration import Broken, exercise
from multigpu.checking.probes import handles_are_waited_for

from .exchanging import Exchange, all_of_it, counted, dispatched, exchanged, sorting
from .routing import (
    each_routing,
    given,
    gradient_back,
    noted,
    received_by,
    routes,
    sends_once,
    tokens_of,
    weighted_sum,
    whose,
)

dispatch = exercise(
    "experts.dispatch",
    expects="every rank receives the tokens of its experts, sorted by expert, and their gradients"
    " come back",
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
        if not hasattr(sent, "counts"):
            raise Broken("no_counts", f"sent is a {type(sent).__name__} without such an attribute")
        came[f"received{turn(number)}"] = received
        counts = sent.counts
        came[f"sent.counts{turn(number)}"] = [*counts] if isinstance(counts, tuple) else counts
        made.append((number, tokens, received))
    for number, tokens, received in made if case.gradient else []:
        if received.requires_grad:
            with noted(times, "dispatch"):
                weighted_sum(case, rank, received).backward()
        if len(tokens):  # that of no tokens may be missing
            came[f"the gradient of tokens{turn(number)}"] = tokens.grad
    return came | {"watched": {"times": times, "changed": changed}}


def turn(number):
    return f" of call {number + 1}" if number else ""


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


@dispatch.holds(
    "no_counts",
    expects="sent.counts is a list with the number of rows of each expert of this rank",
    usually="callers read it to know which rows belong to which expert.",
    fix="SimpleNamespace(counts=..., ...) from the module types makes an object with attributes.",
)
def without_counts(run, case):
    return None  # the drive raises


@dispatch.holds(
    "input_changed",
    expects="tokens and expert stay as they are",
    usually="something wrote into them in place, such as a method with _ at its end.",
    fix="tokens[order] makes a new tensor.",
)
def changed_inputs(run, case):
    for rank, came in enumerate(run.came(case)):
        for name in came["watched"]["changed"]:
            if name != "outputs":  # combine's
                return f"on rank {rank}, {name} is another one after the call"
    return None


# --- right answers -------------------------------------------------------------------------------


@dispatch.right
def with_torchs_own_gradient(tokens, expert, num_experts):
    import torch.distributed.nn.functional as functional

    def exchange(rows, sent):
        received = rows.new_empty(sum(sent.from_ranks), rows.shape[1])
        return functional.all_to_all_single(received, rows, sent.from_ranks, sent.to_ranks)

    return dispatched(tokens, expert, num_experts, exchange)


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
    fix="Sort the rows by expert once more after they have arrived, and keep the order of ranks"
    " inside of an expert.",
)
def not_sorted_on_arrival(tokens, expert, num_experts):
    leaving, arriving = counted(expert, num_experts)
    order = torch.argsort(expert, stable=True)
    sent = all_of_it(order, torch.arange(int(arriving.sum())), leaving, arriving)
    return exchanged(tokens[order], sent), sent


@dispatch.mistake(
    "not_sorted_before",
    "the tokens were sent in the order in which they were: all_to_all_single takes the first rows"
    " for rank 0, whatever their experts are.",
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
    "the tokens were sent by an operator without a backward: all_to_all_single and other"
    " collectives of torch.distributed write into a tensor, and autograd does not see where its"
    " numbers come from.",
    fix="Write a torch.autograd.Function whose backward sends the gradients the other way.",
)
def without_backward(tokens, expert, num_experts):
    def exchange(rows, sent):
        received = rows.new_empty(sum(sent.from_ranks), rows.shape[1])
        dist.all_to_all_single(received, rows.detach(), sent.from_ranks, sent.to_ranks)
        return received

    return dispatched(tokens, expert, num_experts, exchange)


@dispatch.mistake(
    "counts_by_rank",
    "sent.counts says how many rows came from each rank, and not how many each expert has.",
    fix="Add up, over all ranks, the rows for each expert of this rank.",
)
def counts_by_source(tokens, expert, num_experts):
    received, sent = dispatched(tokens, expert, num_experts, exchanged)
    sent.counts = sent.from_ranks
    return received, sent


class SortedByHand(torch.autograd.Function):
    """Wrong: tokens are sorted in here, and their gradients are not sorted back."""

    @staticmethod
    def forward(ctx, tokens, order, sent):
        ctx.sent = sent
        return exchanged(tokens[order], sent)

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient, ctx.sent.to_ranks, ctx.sent.from_ranks), None, None


@dispatch.mistake(
    "gradients_not_sorted_back",
    "the gradients come back in the order of the experts, and are not put in the order of the"
    " tokens.",
    fix="In backward, gradient i of the sorted rows belongs to token order[i]. Sort outside of the"
    " Function, and autograd does it.",
)
def sorts_inside(tokens, expert, num_experts):
    leaving, arriving = counted(expert, num_experts)
    order = torch.argsort(expert, stable=True)
    sent = all_of_it(order, sorting(arriving), leaving, arriving)
    by_rank = SortedByHand.apply(tokens, order, sent)
    return by_rank[sent.by_expert], sent


@dispatch.mistake(
    "sizes_not_swapped",
    "the two lists of sizes are in the wrong order, either in forward or in backward.",
    fix="all_to_all_single takes the numbers of rows that come, then those that leave. In backward"
    " they change places: what was sent comes back.",
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
    fix="Exchange the counts first. all_to_all_single takes two lists: how many rows come from each"
    " rank, then how many go to each.",
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
    "bincount ends with the largest number that is there, so the ranks exchange different numbers"
    " of counts.",
    fix="bincount(minlength=num_experts) counts the missing experts as zeros.",
    status="crash",
)
def counts_only_what_is_there(tokens, expert, num_experts):
    leaving = torch.bincount(expert)
    dist.all_to_all_single(torch.empty_like(leaving), leaving)
    return dispatched(tokens, expert, num_experts, exchanged)


LEFT_OUT: Any = {
    "name": "exchange_left_out",
    "usually": "a rank without tokens or without rows left out an exchange, in forward or in"
    " backward, and the others wait for it.",
    "fix": "Every rank takes part in every exchange, also with no rows. Return what came out of it,"
    " so that autograd calls its backward.",
    "status": "hang",
}


@dispatch.mistake(**LEFT_OUT)
def empty_without_a_graph(tokens, expert, num_experts):
    received, sent = dispatched(tokens, expert, num_experts, exchanged)
    return (received if len(received) else received.detach()), sent


@dispatch.mistake(**LEFT_OUT, roughly=True)
def returns_early(tokens, expert, num_experts):
    if not len(tokens):
        own = num_experts // dist.get_world_size()
        return tokens, SimpleNamespace(counts=[0] * own)
    return dispatched(tokens, expert, num_experts, exchanged)


@dispatch.breaks("too_many_bytes")
def fills_up(tokens, expert, num_experts):
    """To equal counts, as with a capacity; cut off again afterwards."""

    def filled(rows, sizes, most):
        parts = [torch.cat([p, p.new_zeros(most - len(p), p.shape[1])]) for p in rows.split(sizes)]
        return torch.cat(parts)

    def exchange(rows, sent):
        largest = torch.tensor(max(sent.to_ranks), device=rows.device)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        most, ranks = int(largest), dist.get_world_size()
        arrived = Exchange.apply(filled(rows, sent.to_ranks, most), [most] * ranks, [most] * ranks)
        parts = arrived.split([most] * ranks)
        return torch.cat([part[:size] for part, size in zip(parts, sent.from_ranks)])

    return dispatched(tokens, expert, num_experts, exchange)
