"""What the plain optimizer makes of the rows of all ranks, and what known mistakes make of them."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import mse_loss


@dataclass(frozen=True)
class Step:
    """One training step: the weights before it, the gradients, and the weights after it.

    ``parts`` has by parameter what each rank's own rows give, None where a rank did not use it.
    ``restored()`` makes model and optimizer as they were before the step.
    """

    restored: Callable[[], tuple[torch.nn.Module, torch.optim.Optimizer]]
    before: dict[str, torch.Tensor]
    parts: dict[str, list[torch.Tensor | None]]
    gradients: dict[str, torch.Tensor | None]
    weights: dict[str, torch.Tensor]

    def after(self, gradients, *, fresh=False, times=1, **options):
        """The weights that other gradients or options would give, from the same beginning."""
        model, optimizer = self.restored()
        if fresh:
            optimizer.state.clear()
        for group in optimizer.param_groups:
            group.update(options)
        put(model, gradients)
        for _ in range(times):
            optimizer.step()
        return weights_of(model)

    def summed(self, factor, *, rank=None):
        """The gradients of all ranks, or of one, times a factor."""
        gradients = {}
        for name, parts in self.parts.items():
            total = added(parts if rank is None else [parts[rank]])
            gradients[name] = None if total is None else total * factor
        return gradients


def train(case, *, zeros=False, **options):
    """Train on the rows of all ranks; with ``zeros`` no gradient of a trained one is ever None."""
    model = case.model_of()
    kind = getattr(torch.optim, case.kind)
    optimizer = kind(model.parameters(), **(case.options | options))
    done = []
    for number, passes in enumerate(case.steps):
        set_rate(optimizer, case, number)
        parts = gradients_of(model, passes)
        gradients = {}
        for name, own in parts.items():
            total = added(own)
            if total is None and zeros:
                total = torch.zeros_like(model.get_parameter(name))
            gradients[name] = None if total is None else total / len(own)
        before, restored = weights_of(model), functools.partial(replayed, case, tuple(done))
        put(model, gradients)
        optimizer.step()
        done.append(Step(restored, before, parts, gradients, weights_of(model)))
    return done


def replayed(case, steps):
    """Model and optimizer after some right steps: nobody needs them but to explain a wrong one."""
    model = case.model_of()
    optimizer = getattr(torch.optim, case.kind)(model.parameters(), **case.options)
    for number, step in enumerate(steps):
        set_rate(optimizer, case, number)
        put(model, step.gradients)
        optimizer.step()
    set_rate(optimizer, case, len(steps))
    return model, optimizer


def set_rate(optimizer, case, number):
    for group in optimizer.param_groups:
        group["lr"] = case.rates.get(number, group["lr"])


def gradients_of(model, passes):
    """By parameter, the gradient of each rank's rows, added up over the passes of a step."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    by_rank = []
    for rank in range(len(passes[0])):
        losses = [mse_loss(model(ranks[rank][0]), ranks[rank][1]) for ranks in passes]
        loss = sum(losses[1:], losses[0])
        by_rank.append(torch.autograd.grad(loss, list(trained.values()), allow_unused=True))
    return {name: [own[i] for own in by_rank] for i, name in enumerate(trained)}


def put(model, gradients):
    for name, gradient in gradients.items():
        model.get_parameter(name).grad = None if gradient is None else gradient.clone()


def weights_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def added(tensors):
    """The sum of those that are there; None where none is."""
    there = [tensor for tensor in tensors if tensor is not None]
    return sum(there[1:], there[0]) if there else None


def slots_of(kind_name, options):
    """The names of the state that an optimizer keeps for every element."""
    parameter = torch.nn.Parameter(torch.ones(2, 3))
    parameter.grad = torch.ones(2, 3)
    optimizer = getattr(torch.optim, kind_name)([parameter], **options)
    optimizer.step()
    state = optimizer.state[parameter]
    return tuple(
        name
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape
    )


def mistaken(case, steps, number):
    """By mistake: the weights after step ``number`` that it would give, from a right beginning.

    Where there are several, each element can have come from another one of them.
    """
    step, n = steps[number], len(case.steps[0][0])
    mean = step.gradients
    yield "summed", [step.after(step.summed(1))]
    yield "divided_twice", [step.after(step.summed(1 / n**2))]
    for name, factor in (("of_one_rank", 1), ("only_divided", 1 / n)):
        yield name, [step.after(step.summed(factor, rank=rank)) for rank in range(n)]
    yield "stepped_twice", [step.after(mean, times=2)]
    if number:
        yield "state_lost", [step.after(mean, fresh=True)]
        old_rate = steps[number - 1].restored()[1].param_groups[0]["lr"]
        yield "old_rate", [step.after(mean, lr=old_rate)]
        earlier = [before.gradients for before in steps[: number + 1]]
        sums = {name: added([gradients[name] for gradients in earlier]) for name in mean}
        yield "older_gradients", [step.after(sums)]
    yield from options_dropped(case, number)


def options_dropped(case, number):
    """One option after another left out of the whole training, then all of them."""
    kind = getattr(torch.optim, case.kind)
    usual = kind([torch.nn.Parameter(torch.ones(1))]).defaults
    for name in case.options:
        yield f"option_dropped {name}", [train(case, **{name: usual[name]})[number].weights]
    others = {name: usual[name] for name in case.options if name != "lr"}
    yield "options_dropped", [train(case, **others)[number].weights]
