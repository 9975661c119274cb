"""``experts.combine``: the results of the experts, back in the order of the tokens.

It is called with what the learner's own ``dispatch`` returned.
"""

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise
from multigpu.checking.probes import handles_are_waited_for
from multigpu.ranks import rank_device

from .exchanging import Exchange
from .routing import (
    a_case,
    drawn,
    each_routing,
    given,
    gradient_at,
    noted,
    routes,
    sends_once,
    tokens_of,
    weighted_sum,
    whose,
)

STEPS, WIDTH, RATE = 3, 4, 2.0**-12

combine = exercise(
    "experts.combine",
    expects="result i is what the expert of token i made of it, and gradients go the same way back",
    works_with="dispatch",
)


@combine.cases
def cases():
    for world in (3, 2, 4, 1):
        yield from each_routing(world)
        sizes = (5, 0, 6, 3)[:world]
        steps = [drawn(2 * world, sizes, seed=4 + step) for step in range(STEPS)]
        what = f"{STEPS} steps of training with frozen experts"
        yield a_case(what, world, 2, steps, torch.float64, trains=True)


@combine.drive
def drive(submission, case, rank):
    return (train if case.trains else exchange)(submission, case, rank)


def dispatched_by(submission, case, tokens, expert):
    try:
        return submission.dispatch(tokens, expert, case.experts)
    except Exception as error:
        error.add_note("in dispatch, which combine works with")
        raise


def exchange(submission, case, rank):
    """All calls of dispatch, then those of combine, then backward."""
    came, times, made, changed = {}, {}, [], []
    for number in range(len(case.calls)):
        tokens, expert = given(case, number, rank)
        with noted(times, "dispatch"):
            received, sent = dispatched_by(submission, case, tokens, expert)
        made.append((number, tokens, received, sent))
    for number, tokens, received, sent in made:
        outputs = computed(received, case.dtype).detach().requires_grad_()
        before = outputs.detach().clone()
        with noted(times, "combine"):
            combined = submission.combine(outputs, sent)
        came[f"the result{turn(number)}"] = combined
        if combined.requires_grad:
            with noted(times, "combine"):
                weighted_sum(case, rank, combined).backward()
        if len(outputs):  # that of no rows may be missing
            came[f"the gradient of outputs{turn(number)}"] = outputs.grad
        if not torch.equal(outputs, before):
            changed.append("outputs")
        if case.alone:  # a rank that has left out an exchange gets stuck, and not the next exchange
            continue
        if case.gradient and received.requires_grad:
            gradient = torch.zeros_like(outputs) if outputs.grad is None else outputs.grad
            with noted(times, "dispatch"):
                computed(received, case.dtype).backward(gradient)
        if case.gradient and len(tokens):
            came[f"the gradient of tokens{turn(number)}"] = tokens.grad
        again = received.detach()[:, :1].to(torch.float16)
        with noted(times, "again"):
            came[f"the result of a second combine{turn(number)}"] = submission.combine(again, sent)
    return came | {"watched": {"times": times, "changed": changed}}


def computed(rows, dtype):
    """What an expert makes of its rows: wider, and of another type for bfloat16."""
    wide = torch.float32 if dtype == torch.bfloat16 else dtype
    return torch.cat([2 * rows, 1 - rows[:, :1]], dim=1).to(wide)


def train(submission, case, rank):
    """Steps of a layer; every second expert is frozen."""
    place = rank_device() if dist.get_backend() == "nccl" else "cpu"
    shared, own = [p.to(place) for p in parameters_of(case, rank)]
    came = {}
    for step in range(STEPS):
        tokens, expert = given(case, step, rank)
        shared.grad = own.grad = None
        shared.requires_grad_(), own.requires_grad_()
        received, sent = dispatched_by(submission, case, tokens.detach() @ shared, expert)
        parts = received.split([*sent.counts])
        made = [rows @ weight(own, k) for k, rows in enumerate(parts)]
        combined = submission.combine(torch.cat(made), sent)
        came[f"step {step + 1}: the result"] = combined.detach()
        weighted_sum(case, rank, combined).backward()
        with torch.no_grad():
            shared = shared - RATE * shared.grad
            own = own - RATE * own.grad
        came[f"step {step + 1}: the weights of this rank's experts"] = own
        came[f"step {step + 1}: the weights before dispatch"] = shared
    return came | {"watched": {"times": {}, "changed": []}}


def weight(own, k):
    return own[k].detach() if k % 2 else own[k]


def parameters_of(case, rank):
    """The weights before dispatch, and those of a rank's experts."""
    shared = torch.eye(case.width, dtype=case.dtype) / 64 + rank / 256
    numbers = torch.arange(case.own * case.width * WIDTH, dtype=case.dtype)
    return shared, (numbers.reshape(case.own, case.width, WIDTH) - 7 + rank) / 64


def turn(number):
    return f" of call {number + 1}" if number else ""


@combine.expected
def expected(case):
    return trained(case) if case.trains else [expected_on(case, rank) for rank in range(case.world)]


def expected_on(case, rank):
    due = {}
    for number, chosen in enumerate(case.calls):
        tokens = tokens_of(case, number, rank).requires_grad_()
        result = computed(tokens, case.dtype)
        due[f"the result{turn(number)}"] = result.detach()
        width, dtype = result.shape[1], result.dtype
        back = [gradient_at(case, r, len(own), width, dtype) for r, own in enumerate(chosen)]
        rows = [back[source][i] for own in routes(case, number, rank) for source, i in own]
        if rows:
            due[f"the gradient of outputs{turn(number)}"] = torch.stack(rows)
        if case.alone:
            continue
        if case.gradient and len(tokens):
            result.backward(back[rank])
            due[f"the gradient of tokens{turn(number)}"] = tokens.grad
        second = tokens.detach()[:, :1].to(torch.float16)
        due[f"the result of a second combine{turn(number)}"] = second
    return due


def trained(case):
    """All ranks in one process."""
    parameters = [parameters_of(case, rank) for rank in range(case.world)]
    results = [{} for _ in parameters]
    for step in range(STEPS):
        before = [shared.requires_grad_() for shared, _ in parameters]
        stacks = [own.requires_grad_() for _, own in parameters]
        weights = [weight(own, k) for own in stacks for k in range(case.own)]
        loss = torch.zeros((), dtype=case.dtype)
        for rank, chosen in enumerate(case.calls[step]):
            rows = tokens_of(case, step, rank) @ before[rank]
            made = [row @ weights[expert] for row, expert in zip(rows, chosen, strict=True)]
            result = torch.stack(made) if made else rows.new_empty(0, WIDTH)
            results[rank][f"step {step + 1}: the result"] = result.detach()
            loss = loss + weighted_sum(case, rank, result)
        gradients = torch.autograd.grad(loss, [*before, *stacks], materialize_grads=True)
        new = [p.detach() - RATE * g for p, g in zip([*before, *stacks], gradients, strict=True)]
        parameters = [*zip(new[: case.world], new[case.world :], strict=True)]
        for rank, (shared, own) in enumerate(parameters):
            results[rank][f"step {step + 1}: the weights of this rank's experts"] = own
            results[rank][f"step {step + 1}: the weights before dispatch"] = shared
    return results


@combine.reading
def reading(case, tensor):
    return whose(case, tensor, "results", results_of)


def results_of(case, call, rank):
    return computed(tokens_of(case, call, rank), case.dtype)


def row_bytes(case):
    rows = computed(torch.empty(0, case.width, dtype=case.dtype), case.dtype)
    return rows.shape[1] * rows.itemsize


handles_are_waited_for(combine)
sends_once(combine, "combine", row_bytes)


@combine.holds(
    "input_changed",
    expects="outputs stay as they are",
    usually="something wrote into them in place, such as a method with _ at its end.",
    fix="outputs[order] makes a new tensor.",
)
def changed_inputs(run, case):
    for rank, came in enumerate(run.came(case)):
        if "outputs" in came["watched"]["changed"]:
            return f"on rank {rank}, outputs is another one after the call"
    return None


# --- what answers are made of: `sent` is that of the solution's dispatch -------------------------


def swapped(rows, sent):
    """Rows back to the ranks that they came from."""
    return Exchange.apply(rows, sent.to_ranks, sent.from_ranks)


def inverse(order):
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    return places


# --- right answers -------------------------------------------------------------------------------


@combine.right
def with_inverse_permutations(outputs, sent):
    return swapped(outputs[inverse(sent.by_expert)], sent)[inverse(sent.order)]


@combine.right
def writes_rows_to_their_places(outputs, sent):
    import torch.distributed.nn.functional as functional

    by_rank = torch.zeros_like(outputs).index_copy(0, sent.by_expert, outputs)
    returned = outputs.new_empty(len(sent.order), outputs.shape[1])
    returned = functional.all_to_all_single(returned, by_rank, sent.to_ranks, sent.from_ranks)
    return torch.zeros_like(returned).index_add(0, sent.order, returned)


# --- mistakes ------------------------------------------------------------------------------------


@combine.mistake(
    "order_of_the_experts",
    "the results are in the order in which the tokens were sent, sorted by expert, and not in the"
    " order of the tokens.",
    fix="Undo the first sort: returned[order.argsort()], where order has sorted the tokens.",
)
def not_in_the_order_of_the_tokens(outputs, sent):
    return swapped(outputs[inverse(sent.by_expert)], sent)


@combine.mistake(
    "sorted_by_expert",
    "the results were sent back sorted by expert, while the ranks expect those of their own tokens"
    " in a row.",
    fix="Undo the sort that dispatch did after the rows had arrived, before you send.",
)
def sends_them_as_they_are(outputs, sent):
    return swapped(outputs, sent)[inverse(sent.order)]


@combine.mistake(
    "sorted_again",
    "the results that came back were sorted once more, and not sorted back: x[order] sorts, and"
    " x[order.argsort()] undoes that.",
    fix="Use the inverse permutation: order.argsort().",
)
def sorts_the_results(outputs, sent):
    return swapped(outputs[inverse(sent.by_expert)], sent)[sent.order]


@combine.mistake(
    "sorted_again",
    "the rows were sorted once more before they were sent, and not sorted back: x[order] sorts, and"
    " x[order.argsort()] undoes that.",
    fix="Use the inverse permutation: order.argsort().",
)
def sorts_the_outputs(outputs, sent):
    return swapped(outputs[sent.by_expert], sent)[inverse(sent.order)]


@combine.mistake(
    "sorted_again",
    "both sorts were done once more, and not undone: x[order] sorts, and x[order.argsort()] undoes"
    " that.",
    fix="Use the inverse permutations: order.argsort().",
)
def sorts_both(outputs, sent):
    return swapped(outputs[sent.by_expert], sent)[sent.order]


@combine.mistake(
    "detached",
    "the results were sent by an operator without a backward: all_to_all_single and other"
    " collectives of torch.distributed write into a tensor, and autograd does not see where its"
    " numbers come from.",
    fix="Use the torch.autograd.Function of dispatch, with the sizes swapped.",
)
def without_backward(outputs, sent):
    return swapped(outputs[inverse(sent.by_expert)].detach(), sent)[inverse(sent.order)]


class Averages(Exchange):
    """Wrong: every rank's gradients are divided by the number of ranks."""

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient, *ctx.sizes) / dist.get_world_size(), None, None


@combine.mistake(
    "averaged",
    "the gradients were divided by {n}.",
    fix="A result was computed on one rank only: its gradient goes there as it is.",
)
def averages_the_gradients(outputs, sent):
    by_rank = outputs[inverse(sent.by_expert)]
    return Averages.apply(by_rank, sent.to_ranks, sent.from_ranks)[inverse(sent.order)]


@combine.mistake(
    "sizes_of_dispatch",
    "the sizes are those of dispatch: a rank sends as many rows as it has sent there.",
    fix="What was received is sent back now, so swap the two lists.",
    status="crash",
)
def sizes_as_in_dispatch(outputs, sent):
    by_rank = outputs[inverse(sent.by_expert)]
    return Exchange.apply(by_rank, sent.from_ranks, sent.to_ranks)[inverse(sent.order)]


@combine.mistake(
    "rank_without_rows",
    "a rank that has nothing to send left out the exchange, in forward or in backward, and the"
    " others wait for it.",
    fix="Every rank takes part in both: another rank may send to it. Return what came out of the"
    " exchange, so that autograd calls its backward.",
    status="hang",
    roughly=True,
)
def returns_early(outputs, sent):
    if not len(outputs):
        return outputs.new_empty(len(sent.order), outputs.shape[1])
    return swapped(outputs[inverse(sent.by_expert)], sent)[inverse(sent.order)]


@combine.breaks("input_changed")
def clears_the_outputs(outputs, sent):
    result = swapped(outputs[inverse(sent.by_expert)], sent)[inverse(sent.order)]
    outputs.data.zero_()
    return result


@combine.breaks("too_many_bytes")
def tells_all_ranks(outputs, sent):
    """And each rank keeps those of its own tokens; the backward is that of the right answer."""
    most = torch.tensor(len(outputs), device=outputs.device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    padded = outputs.new_zeros(int(most), outputs.shape[1])
    padded[: len(outputs)] = outputs.detach()
    dist.all_gather([torch.empty_like(padded) for _ in range(dist.get_world_size())], padded)
    return swapped(outputs[inverse(sent.by_expert)], sent)[inverse(sent.order)]
