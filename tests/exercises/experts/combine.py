"""``experts.combine``: the results of the experts, back in the order of the tokens.

It is called with what the learner's own ``dispatch`` returned.
"""

import torch

from multigpu.checking.declaration import exercise
from multigpu.checking.probes import handles_are_waited_for

from .exchanging import Exchange
from .routing import (
    LEFT_OUT,
    each_routing,
    given,
    gradient_at,
    inputs_stay,
    noted,
    routes,
    sends_once,
    tokens_of,
    turn,
    weighted_sum,
    whose,
)

combine = exercise(
    "experts.combine",
    expects="result i is what the expert of token i made of it, and gradients go the same way back",
    works_with="dispatch",
)


@combine.cases
def cases():
    for world in (3, 2, 4, 1):
        yield from each_routing(world)


@combine.drive
def drive(submission, case, rank):
    """All calls of dispatch, then those of combine, then backward."""
    came, times, made, changed = {}, {}, [], []
    for number in range(len(case.calls)):
        tokens, expert = given(case, number, rank)
        with noted(times, "dispatch"):
            try:
                received, sent = submission.dispatch(tokens, expert, case.experts)
            except Exception as error:
                error.add_note("in dispatch, which combine works with")
                raise
        made.append((number, tokens, received, sent))
    for number, tokens, received, sent in made:
        outputs = computed(received, case.dtype).detach().requires_grad_()
        before = outputs.detach().clone()
        with noted(times, "combine"):
            combined = submission.combine(outputs, sent)
        came[f"the result{turn(number)}"] = combined
        if getattr(combined, "requires_grad", False):
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


@combine.expected
def expected(case):
    return [expected_on(case, rank) for rank in range(case.world)]


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
inputs_stay(combine, "outputs")


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
    "the results are sorted by expert, as the tokens were sent, and not in their order.",
    fix="Undo the first sort: returned[order.argsort()], where order has sorted the tokens.",
)
def not_in_the_order_of_the_tokens(outputs, sent):
    return swapped(outputs[inverse(sent.by_expert)], sent)


@combine.mistake(
    "sorted_by_expert",
    "the results were sent back sorted by expert, and not by the ranks that they go to.",
    fix="Undo the sort that dispatch did after the rows had arrived, before you send.",
)
def sends_them_as_they_are(outputs, sent):
    return swapped(outputs, sent)[inverse(sent.order)]


@combine.mistake(
    "sorted_again",
    "rows were sorted once more: x[order] sorts, and x[order.argsort()] undoes that.",
    fix="Use the inverse permutations: sent.order.argsort(), and likewise before the exchange.",
)
def sorts_both(outputs, sent):
    return swapped(outputs[sent.by_expert], sent)[sent.order]


@combine.mistake(
    "detached",
    "the results were sent by a collective of torch.distributed, which autograd does not see.",
    fix="Use the torch.autograd.Function of dispatch, with the sizes swapped.",
)
def without_backward(outputs, sent):
    return swapped(outputs[inverse(sent.by_expert)].detach(), sent)[inverse(sent.order)]


@combine.mistake(
    "sizes_of_dispatch",
    "the two lists of sizes are in the wrong order, either in forward or in backward.",
    fix="combine swaps the two lists of dispatch, and its backward swaps them again.",
    status="crash",
)
def sizes_as_in_dispatch(outputs, sent):
    by_rank = outputs[inverse(sent.by_expert)]
    return Exchange.apply(by_rank, sent.from_ranks, sent.to_ranks)[inverse(sent.order)]


@combine.mistake(**LEFT_OUT)
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
def sends_twice(outputs, sent):
    swapped(outputs.detach(), sent)
    return swapped(outputs[inverse(sent.by_expert)], sent)[inverse(sent.order)]
