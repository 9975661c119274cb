"""Gradients that each rank is given, to be averaged: cases, one call, and the right average."""

import torch
import torch.distributed as dist

from multigpu.checking.comparing import Either
from multigpu.checking.declaration import Shared, case
from multigpu.checking.probes import handles_are_waited_for
from multigpu.checking.specimen import Fork, Specimen, seeded
from multigpu.ranks import rank_device
from multigpu.ranks.errors import counted, listed

MODELS = {"specimen": Specimen, "fork": Fork}


def a_case(world, about="", *, dtype=torch.float64, model="specimen", missing=None, rows=None):
    """Gradients of other numbers on every rank.

    ``missing`` says by the beginning of a parameter's name which ranks have none.  With ``rows``
    a rank counts as much as it has rows, and one without rows has no gradient at all.
    """
    generator = torch.Generator().manual_seed(world)
    missing = {"frozen": range(world)} | (missing or {})
    idle = [rank for rank in range(world) if rows and not rows[rank]]
    gradients = {}
    for name, parameter in MODELS[model]().named_parameters():
        without = [rank for key in missing if name.startswith(key) for rank in missing[key]] + idle
        gradients[name] = [
            None
            if rank in without
            else torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
            for rank in range(world)
        ]
    title = [counted(world, "rank"), str(dtype)[6:]]
    title += [f"with {listed(rows)} rows"] if rows else []
    title += [about] if about else []
    own = {"dtype": dtype, "model": model, "gradients": gradients, "rows": rows}
    return case(", ".join(title), world=world, **own)


def averaged(call, case, rank):
    """Give this rank's model its gradients, ``call(model)``, and tell what it holds then.

    ``changed`` are the names of parameters whose weights are not what they were.
    """
    model = seeded(MODELS[case.model], rank)  # weights that differ, as after different steps
    model = model.to(rank_device(), case.dtype)
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        own = case.gradients[name][rank]
        parameter.grad = None if own is None else own.clone().to(parameter.device)
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    call(model)
    parameters = dict(model.named_parameters())
    came = {f"{name}.grad": parameter.grad for name, parameter in parameters.items()}
    came = {name: None if grad is None else grad.detach().clone() for name, grad in came.items()}
    came["changed"] = [
        name
        for name, old in before.items()
        if name not in parameters or not torch.equal(parameters[name].detach(), old)
    ]
    return came


def average(case):
    """What every rank must hold: the mean over ranks, or over the rows of all ranks."""
    weights = case.rows or [1] * case.world
    mean = {}
    for name, parts in case.gradients.items():
        pairs = zip(parts, weights, strict=True)
        there = [part.double() * weight for part, weight in pairs if part is not None]
        if there:
            mean[f"{name}.grad"] = (sum(there) / sum(weights)).to(case.dtype)
        else:
            shape = MODELS[case.model]().get_parameter(name).shape
            mean[f"{name}.grad"] = Either(torch.zeros(shape, dtype=case.dtype), None)
    return [mean] * case.world


def averages_gradients(exercise):
    """What must come back, and what is looked at besides."""
    exercise.expected(average)
    every_average.add_to(exercise)
    handles_are_waited_for(exercise)

    @exercise.holds(
        "nothing_sent",
        expects="every rank sends its gradients, and all wait for each other",
        usually="the call is not there, or it is in a loop that had nothing left to go through:"
        " model.parameters() is a generator, and what uses it a second time gets nothing.",
        fix="Ask for model.parameters() again in every loop, or make a list of it once.",
        first=True,
    )
    def _(run, case):
        for rank in range(case.world if case.world > 1 else 0):
            if not run.calls(case, rank):
                return f"rank {rank} called nothing of torch.distributed"
        return None

    @exercise.holds(
        "weights_changed",
        expects="the weights stay as they are, and only .grad changes",
        usually="the parameter itself was averaged.",
        fix="Average parameter.grad, and leave the parameter to the optimizer.",
        first=True,
    )
    def _(run, case):
        for rank, came in enumerate(run.came(case)):
            if came["changed"]:
                return f"on rank {rank}, {listed(came['changed'])} changed"
        return None


# --- what answers are made of --------------------------------------------------------------------


def trained(model):
    """All trainable parameters, with zeros where there is no gradient."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    return parameters


def all_rows(number):
    """The sum of a number over all ranks."""
    total = torch.tensor(float(number))
    dist.all_reduce(total)
    return total.item()


def share_of(num_samples):
    """How much this rank counts; without a number of rows as much as each other one."""
    return 1 / dist.get_world_size() if num_samples is None else num_samples / all_rows(num_samples)


# --- mistakes in both ----------------------------------------------------------------------------

every_average = Shared()


@every_average.mistake(
    "unused_out_of_step",
    "a gradient that is None was skipped on one rank, while other ranks wait for it.",
    fix="Every rank makes every call: put zeros where there is no gradient.",
    status="mismatch",
)
def skips_none(model, num_samples=None):
    share = share_of(num_samples)
    for p in model.parameters():
        if p.grad is not None:
            p.grad *= share
            dist.all_reduce(p.grad)


@every_average.mistake(
    "unused_out_of_step",
    "the flat tensor is shorter on a rank that did not use a parameter.",
    fix="Put zeros where there is no gradient.",
    status="mismatch",
)
def flattens_what_is_there(model, num_samples=None):
    share = share_of(num_samples)
    there = [p for p in model.parameters() if p.grad is not None]
    flat = torch.cat([p.grad.reshape(-1) for p in there]) * share
    dist.all_reduce(flat)
    for p, piece in zip(there, flat.split([p.numel() for p in there])):
        p.grad = piece.view_as(p)


@every_average.mistake(
    "missing_stays_none",
    "this rank took part with zeros, but threw away what the others sent.",
    fix="Put the average into .grad here too, or the weights of the ranks drift apart.",
)
def takes_part_but_keeps_none(model, num_samples=None):
    share = share_of(num_samples)
    for p in model.parameters():
        if p.requires_grad:
            part = torch.zeros_like(p) if p.grad is None else p.grad * share
            dist.all_reduce(part)
            if p.grad is not None:
                p.grad = part


@every_average.mistake(
    "divided_by_users",
    "only the ranks that used the parameter were counted in what the sum was divided by.",
    fix="A rank that did not use it counts as zero: divide by the same number for all parameters.",
)
def divides_by_those_that_have_one(model, num_samples=None):
    rows = 1 if num_samples is None else num_samples
    for p in model.parameters():
        if p.requires_grad:
            of_users = all_rows(0 if p.grad is None else rows)
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad *= rows
            dist.all_reduce(p.grad)
            p.grad /= max(1.0, of_users)


@every_average.mistake(
    "not_averaged",
    "this is the rank's own gradient: the average was computed in another tensor and never came"
    " into .grad. Perhaps the loop that writes it back has nothing left to go through, because it"
    " uses the same generator of parameters as a loop before it.",
    fix="Reduce into .grad itself, or copy the result back; make a list of model.parameters() if"
    " you go through it twice.",
)
def averages_a_copy(model, num_samples=None):
    share = share_of(num_samples)
    for p in trained(model):
        dist.all_reduce(p.grad * share)


@every_average.mistake(
    "only_divided",
    "this is the rank's own gradient times its share: the sum over the ranks is not in .grad.",
    fix="Reduce .grad itself: all_reduce writes the sum into the tensor that it is given.",
)
def scales_and_reduces_a_copy(model, num_samples=None):
    share = share_of(num_samples)
    for p in trained(model):
        p.grad *= share
        dist.all_reduce(p.grad.clone())


@every_average.mistake(
    "generator_used_up",
    "the generator of parameters was used up by a loop before, so torch.cat gets an empty list.",
    fix="Ask for model.parameters() again, or make a list of it once.",
    status="crash",
)
def flattens_a_generator_that_is_used_up(model, num_samples=None):
    share = share_of(num_samples)
    parameters = iter(trained(model))
    for p in parameters:
        p.grad *= share
    dist.all_reduce(torch.cat([p.grad.reshape(-1) for p in parameters]))


@every_average.breaks("nothing_sent")
def goes_through_a_generator_twice(model, num_samples=None):
    parameters = iter(trained(model))
    for p in parameters:
        p.grad /= dist.get_world_size()
    for p in parameters:
        dist.all_reduce(p.grad)


@every_average.breaks("weights_changed")
def averages_the_weights(model, num_samples=None):
    share = share_of(num_samples)
    for p in model.parameters():
        p.data *= share
        dist.all_reduce(p.data)
