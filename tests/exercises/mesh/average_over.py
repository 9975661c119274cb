"""``mesh.average_over``: gradients become their mean over one group only."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from multigpu.checking.comparing import Either
from multigpu.checking.declaration import case, exercise
from multigpu.checking.probes import handles_are_waited_for
from multigpu.checking.specimen import Fork, Gain, seeded
from multigpu.ranks import rank_device
from multigpu.ranks.errors import counted, listed

average_over = exercise(
    "mesh.average_over",
    expects="every .grad is the sum over the ranks of the group divided by their number",
    share_of=lambda case: math.prod(map(len, case.groups)),
)
CHANGED = "the list of changed weights"


class Part(nn.Module):
    """Tied and frozen parameters, and one without dimensions.  It is never called."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(3, 3), nn.Linear(3, 3)
        self.decode.weight = self.encode.weight
        self.frozen = nn.Linear(30, 10).requires_grad_(False)
        self.gain = Gain()


def a_case(groups, about="", *, dtypes=(torch.float64,), missing=None, kinds=(Part,), callers=None):
    """Gradients of other numbers on every rank.

    ``missing`` says by the beginning of a parameter's name which ranks have none.  ``kinds``: the
    first group has a model of the first kind, and so on.  ``callers``: only these groups call.
    """
    world = sum(map(len, groups))
    generator = torch.Generator().manual_seed(10 * world + len(groups))
    kinds = [kinds[number % len(kinds)] for number in range(len(groups))]
    gradients = [{} for _ in range(world)]  # by rank and name: numbers, and whether they are there
    for kind, rank in ((kind, r) for kind, ranks in zip(kinds, groups) for r in ranks):
        for number, (name, parameter) in enumerate(kind().named_parameters()):
            # Even numbers, so that the mean of two is exact in bfloat16, too.
            values = 2.0 * torch.randint(-30, 31, parameter.shape, generator=generator)
            without = [r for key in missing or {} if name.startswith(key) for r in missing[key]]
            there = parameter.requires_grad and rank not in without
            gradients[rank][name] = values.to(dtypes[number % len(dtypes)]), there
    callers = range(len(groups)) if callers is None else callers
    title = f"{counted(world, 'rank')} in groups {listed([*map(str, groups)])}"
    title += f", {about}" if about else ""
    given = {"groups": groups, "kinds": kinds, "gradients": gradients, "callers": callers}
    # A rank that gets stuck where others do not call, or have no gradient, does so alone.
    alone = len(callers) < len(groups) or missing is not None
    return case(title, world=world, alone=alone, **given)


@average_over.cases
def cases():
    halves, columns = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
    yield a_case(columns)
    yield a_case([[0], [1, 2, 3]])
    yield a_case([[0, 1, 2, 3]], "float32", dtypes=(torch.float32,))
    some = {"encode.bias": [3], "decode.bias": [0, 1], "gain": [0, 1, 2, 3]}
    yield a_case(columns, "some parameters not used on all ranks", missing=some)
    none = {"encode.bias": [1, 2], "decode": [0, 2], "encode.weight": [2]}
    yield a_case([[0, 1, 2], [3]], "some parameters not used on all ranks", missing=none)
    yield a_case(columns, "models of two kinds", kinds=(Part, Fork))
    yield a_case(halves, "bfloat16", dtypes=(torch.bfloat16,))
    yield a_case(columns, "float32 and bfloat16", dtypes=(torch.float32, torch.bfloat16))
    yield a_case(columns, "only the second group calls", callers=[1])
    yield a_case([[0, 2], [1]])
    yield a_case([[0], [1, 2]], "models of two kinds", kinds=(Fork, Part))
    yield a_case([[0], [1]])
    yield a_case([[0, 1]], missing={"encode.weight": [0]})
    yield a_case([[0]])


def own_group(case, rank):
    """The number of a rank's group."""
    return next(number for number, group in enumerate(case.groups) if rank in group)


@average_over.drive
def drive(submission, case, rank):
    made = [dist.new_group(ranks) for ranks in case.groups]  # every rank makes all of them
    number = own_group(case, rank)
    if number not in case.callers:
        return {CHANGED: []}
    model = seeded(case.kinds[number], rank)  # weights that differ, as after different steps
    before = {}
    for name, parameter in model.named_parameters():
        values, there = case.gradients[rank][name]
        parameter.data = parameter.data.to(rank_device(), values.dtype)
        parameter.grad = values.clone().to(parameter.device) if there else None
        before[name] = parameter.detach().clone()
    submission.average_over(model, made[number])
    now = dict(model.named_parameters())
    changed = [name for name, old in before.items() if name not in now or not now[name].equal(old)]
    gradients = {f"{name}.grad": parameter.grad for name, parameter in now.items()}
    return gradients | {CHANGED: changed}


@average_over.expected
def expected(case):
    return [means_of(case, rank) for rank in range(case.world)]


def means_of(case, rank):
    number = own_group(case, rank)
    right: dict[str, Any] = {CHANGED: []}
    group = case.groups[number]
    for name, (values, _) in case.gradients[rank].items() if number in case.callers else ():
        parts = [case.gradients[each][name] for each in group]
        there = [part.double() for part, is_there in parts if is_there]
        mean = (sum(there) / len(group)).to(values.dtype) if there else None
        unused = Either(torch.zeros_like(values), None)
        right[f"{name}.grad"] = unused if mean is None else mean
    return right


@average_over.words
def words(case):
    sizes = sorted({len(group) for group in case.groups})
    return {"size": " or ".join(map(str, sizes))}


handles_are_waited_for(average_over)


@average_over.holds(
    "too_many_bytes",
    expects="a rank sends at most twice the bytes of its trainable parameters' gradients",
    usually="zeros are sent for frozen parameters, or gradients travel more than twice or pickled.",
    fix="Leave out parameters whose requires_grad is False, and use one all_reduce per gradient.",
)
def too_many_bytes(run, case):
    silent, fills = ("new_group", "barrier", "recv"), ("broadcast", "scatter")  # by the root alone
    for rank in range(case.world):
        named = case.kinds[own_group(case, rank)]().named_parameters()
        of_gradient = {name: values.nbytes for name, (values, _) in case.gradients[rank].items()}
        held = [of_gradient[name] for name, parameter in named if parameter.requires_grad]
        calls = [call for call in run.calls(case, rank) if call.op not in silent]
        sent = sum(call.bytes for call in calls if call.op not in fills or call.root == rank)
        if sent > 2 * sum(held) + 8 * len(held) + 8:  # 8: to tell who has a gradient
            return f"rank {rank} sent {sent:g} bytes; its gradients have {sum(held)}"
    return None


# --- right answers -------------------------------------------------------------------------------


def trained(model):
    """All trainable parameters, with zeros where there is no gradient."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    return parameters


@average_over.right
def a_flat_tensor_for_each_dtype(model, group):
    buffers = {}
    for p in trained(model):
        buffers.setdefault(p.dtype, []).append(p)
    for parameters in buffers.values():
        flat = torch.cat([p.grad.flatten() for p in parameters])
        dist.all_reduce(flat, group=group)
        flat /= dist.get_world_size(group)
        for p, piece in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            p.grad = piece.view_as(p)


@average_over.right
def asks_who_has_one_first(model, group):
    parameters = [p for p in model.parameters() if p.requires_grad]
    used = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int64)
    dist.all_reduce(used, op=dist.ReduceOp.MAX, group=group)
    for p, anybody in zip(parameters, used.tolist(), strict=True):
        if anybody:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(grad, group=group)
            p.grad = grad / len(dist.get_process_group_ranks(group))


# --- mistakes ------------------------------------------------------------------------------------


def divided_sum(model, group, divisor):
    """Right with the group and the number of its ranks."""
    for p in trained(model):
        dist.all_reduce(p.grad, group=group)
        p.grad /= divisor


WHOLE_WORLD = (
    "whole_world",
    "a call without group=group is for all {n} ranks, also those of other groups.",
)


@average_over.mistake(*WHOLE_WORLD, fix="Pass group=group to every call.")
def reduces_over_the_world(model, group):
    divided_sum(model, None, dist.get_world_size())


@average_over.mistake(*WHOLE_WORLD, fix="Pass group=group to every call.")
def reduces_over_the_world_and_divides_by_the_group(model, group):
    divided_sum(model, None, dist.get_world_size(group))


@average_over.mistake(
    "divided_by_world",
    "the sum over the group was divided by {n}, the number of all ranks.",
    fix="Divide by dist.get_world_size(group), which is {size} here.",
)
def divides_by_all_ranks(model, group):
    divided_sum(model, group, dist.get_world_size())


@average_over.mistake(
    "summed",
    "all_reduce adds up, and the sum was never divided.",
    fix="Divide by dist.get_world_size(group), which is {size} here.",
)
def sums(model, group):
    divided_sum(model, group, 1)


@average_over.mistake(
    "unused_out_of_step",
    "a gradient that is None was skipped on one rank, while the others of its group wait for it.",
    fix="Every rank of a group makes every call: put zeros where there is no gradient.",
    status="hang",
)
def skips_none(model, group):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad, group=group)
            p.grad /= dist.get_world_size(group)


@average_over.mistake(
    "not_averaged",
    "the mean never came into .grad: it was computed in another tensor, or the loop had nothing to"
    " go through, because model.parameters() is a generator that works only once.",
    fix="Reduce into .grad itself, or copy the result back; and call model.parameters() for each"
    " loop.",
)
def throws_the_result_away(model, group):
    for p in trained(model):
        total = p.grad.clone()
        dist.all_reduce(total, group=group)
        total /= dist.get_world_size(group)


@average_over.mistake(
    "weights_changed",
    "the parameter itself was averaged.",
    fix="Average parameter.grad, and leave the parameter to the optimizer.",
)
def averages_the_weights(model, group):
    for p in trained(model):
        dist.all_reduce(p.data, group=group)
        p.data /= dist.get_world_size(group)


@average_over.breaks("too_many_bytes")
def sends_zeros_for_frozen_ones(model, group):
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(p.grad, group=group)
        p.grad /= dist.get_world_size(group)
