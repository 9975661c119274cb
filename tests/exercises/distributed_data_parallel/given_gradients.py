"""Gradients that each rank is given, to be averaged: cases, one call, and the right average."""

import torch

from multigpu.checking.comparing import Either
from multigpu.checking.declaration import case
from multigpu.checking.probes import handles_are_waited_for
from multigpu.checking.specimen import Fork, Specimen, seeded
from multigpu.checking.verdicts import count, listed
from multigpu.ranks import rank_device

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
    title = [count(world, "rank"), str(dtype)[6:]]
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
                return f"rank {rank} called nothing of torch.distributed", run.where(rank)
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
                return f"on rank {rank}, {listed(came['changed'])} changed", run.where(rank)
        return None


# --- what answers are made of --------------------------------------------------------------------


def trained(model):
    """All trainable parameters, with zeros where there is no gradient."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    return parameters
