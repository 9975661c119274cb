"""Training through a sharded optimizer: what Zero1Optimizer and Zero2Optimizer have in common.

``as_plain_training(exercise)`` gives a declaration its cases, what one process makes of the same
rows, and the properties that both optimizers promise.
"""

import functools
import time

import torch
from torch.nn.functional import mse_loss

from multigpu.checking.comparing import Either, alike, same
from multigpu.checking.declaration import case
from multigpu.checking.probes import handles_are_waited_for, noted_on_each_rank
from multigpu.checking.specimen import rows_by_step
from multigpu.ranks import rank_device
from multigpu.ranks.errors import counted, listed

from .holdings import forget_the_past
from .models import biased, deep, fork, forked, seven, specimen, two
from .volume import volume_by_step
from .watching import watched

PROMISE = "after every step each rank has the weights that the plain optimizer has in one process"

# --- cases ---------------------------------------------------------------------------------------


def cases():
    """On 3 ranks first one parameter: there are few ways to assign it, so mistakes show clearly."""
    momentum = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    nesterov = {**momentum, "nesterov": True}
    adam = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6}
    for world in (3, 4, 1):
        yield a_case(world, seven, "SGD", nesterov, rows_by_step(world, 3, 7, 7))
        # Tied, frozen and zero-dimensional parameters; two passes in a step.
        passes = rows_by_step(world, 1, 3, 3, passes=2) + rows_by_step(world, 3, 3, 3)
        yield a_case(world, specimen, "SGD", momentum, passes, rates={2: 0.03})
        large = rows_by_step(world, 5, 6, 6)
        yield a_case(world, deep, "Adam", adam, large, rates={3: 0.002}, measured=True)
    for kind, few in {"SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {}}.items():
        yield a_case(4, two, kind, few, rows_by_step(4, 3, 2, 2), rates={1: 0.02})
    # A parameter without a gradient on one rank, on all ranks in the last step, or always.
    for kind, few in {"SGD": momentum, "AdamW": {"lr": 0.01, "weight_decay": 0.1}}.items():
        yield a_case(2, fork, kind, few, forked(2, 4), unused=True)
    kinds = {
        "SGD": {"lr": 0.1, "momentum": 0.8, "nesterov": True},
        "Adam": {"lr": 0.01, "betas": (0.7, 0.9), "amsgrad": True, "weight_decay": 0.1},
        "AdamW": {"lr": 0.01, "weight_decay": 0.1},
        "RMSprop": {"lr": 0.01, "alpha": 0.9, "momentum": 0.5, "centered": True},
        "Adagrad": {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.2},
    }
    for kind, options in kinds.items():  # large and small parameters in turn, then small ones
        yield a_case(2, biased, kind, options, rows_by_step(2, 3, 8, 8))


def a_case(world, model_of, kind, options, steps, *, rates=(), measured=False, unused=False):
    """``rates[s]`` is the learning rate from step s on.

    With ``measured`` the model is large enough that what is sent and held can be told from what
    fills up unequal parts.
    """
    said = ", ".join([kind, *(f"{name}={value}" for name, value in options.items())])
    sizes = [p.numel() for p in model_of().parameters() if p.requires_grad]
    share = -(-sum(sizes) // world)  # rounded up
    return case(
        f"{counted(len(sizes), 'parameter')}, {said}, on {counted(world, 'rank')}",
        world=world,
        model_of=model_of,
        kind=kind,
        options=options,
        steps=steps,
        rates=dict(rates),
        measured=measured,
        unused=unused,
        parameters=len(sizes),
        total=sum(sizes),
        share=share,
        largest=max(sizes),
        bound=share + max(sizes),
        example=measured,
    )


# --- what a rank does ----------------------------------------------------------------------------


def training_of(name):
    """A drive: train with the class of this name, and note all that a property looks at."""

    def drive(submission, case, rank):
        forget_the_past()
        kind, model = getattr(torch.optim, case.kind), case.model_of().to(rank_device())
        slots, default = slots_and_rate(kind, case.options)
        seen = {"steps": [], "left": [], "default": default}
        with watched(kind, slots, model) as watch:
            optimizer = getattr(submission, name)(model.parameters(), kind, **case.options)
            came = named("at the start", model)
            seen["rates"] = rates_of(optimizer)
            for number, passes in enumerate(case.steps):
                if number in case.rates and isinstance(seen["rates"], list):
                    for group in optimizer.param_groups:
                        group["lr"] = case.rates[number]
                began = time.monotonic()
                optimizer.zero_grad()
                graded = (n for n, p in model.named_parameters() if has_gradient(p))
                seen["left"].append(list(graded))
                watch.begin_step(2 * case.bound if case.measured and number == 1 else None)
                backward(model, [ranks[rank] for ranks in passes])
                optimizer.step()
                seen["steps"].append((began, time.monotonic()))
                watch.note_state("at the end of the step")
                came |= named(f"step {number + 1}", model)
        return came | {"watched": seen | watch.notes()}

    return drive


def backward(model, passes):
    """Every pass adds to the gradients of the one before."""
    for rows in passes:
        inputs, targets = (tensor.to(rank_device()) for tensor in rows)
        mse_loss(model(inputs), targets).backward()


def has_gradient(parameter):
    return parameter.grad is not None and bool(parameter.grad.any())


def named(when, model):
    return {f"{when}: {name}": p.detach().clone() for name, p in model.named_parameters()}


def rates_of(optimizer):
    """The ``lr`` of each of the param_groups; in words, if these are something else."""
    groups = getattr(optimizer, "param_groups", None)
    if not isinstance(groups, list):
        return f"it is a {type(groups).__name__}"
    if not groups or not all({"params", "lr"}.issubset(group) for group in groups):
        return "it has no dict, or one without params or lr"
    return [group["lr"] for group in groups]


# --- what one process does -----------------------------------------------------------------------


@functools.cache
def expected(case):
    """Where no rank has a gradient, a parameter may be left alone or stepped with zeros."""
    results = [[trained(case, zeros)] * case.world for zeros in (False, True)]
    return Either(*results) if case.unused else results[0]


def trained(case, zeros):
    """The weights after every step, on the rows of all ranks."""
    model = case.model_of()
    optimizer = getattr(torch.optim, case.kind)(model.parameters(), **case.options)
    came = named("at the start", model)
    for number, passes in enumerate(case.steps):
        for group in optimizer.param_groups:
            group["lr"] = case.rates.get(number, group["lr"])
        optimizer.zero_grad()
        for ranks in passes:
            for inputs, targets in ranks:
                (mse_loss(model(inputs), targets) / case.world).backward()
        for parameter in model.parameters():
            if zeros and parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        came |= named(f"step {number + 1}", model)
    return came


def slots_and_rate(kind, options):
    """The names of the state that an optimizer keeps for every element, and its first ``lr``."""
    parameter = torch.nn.Parameter(torch.ones(2, 3))
    parameter.grad = torch.ones(2, 3)
    optimizer = kind([parameter], **options)
    optimizer.step()
    state = optimizer.state[parameter].items()
    slots = [n for n, v in state if isinstance(v, torch.Tensor) and v.shape == parameter.shape]
    return slots, optimizer.param_groups[0]["lr"]


# --- properties of both --------------------------------------------------------------------------


def stale(run, case):
    """Where weights are those of before the step, in words; None if something else is wrong."""
    came, right = run.came(case), expected(case)
    right = (right if isinstance(right, list) else right.results[0])[0]
    keys = list(right)
    first = [key for key in keys if key.startswith("at the start")]
    before = dict(zip(keys[len(first) :], keys, strict=False))  # the same name, a step earlier
    for key, value in right.items():
        wrong = [rank for rank, own in enumerate(came) if not same(own[key].value, value)]
        if not wrong:
            continue
        mine = came[wrong[0]][key].value
        off = ~torch.isclose(mine, value, rtol=1e-6, atol=1e-9)
        if key in first or not off.any():
            return None
        if not mine[off].equal(came[wrong[0]][before[key]].value[off]):
            return None
        others = [own[key].value[off] for own in came]
        is_so = "it is so on all" if all(alike(o, mine[off]) for o in others) else "not on all"
        found = f"on rank {wrong[0]}, {key} is what it was before the step, or parts of it are"
        return f"{found} ({is_so} ranks)"
    return None


def wrong_groups(notes, case):
    rates, right = notes["rates"], notes["default"]
    if isinstance(rates, str):
        return rates
    return any(rate != right for rate in rates) and f"lr in it is {listed(rates)}, and not {right}"


def left_by_zero_grad(notes, case):
    for number, left in enumerate(notes["left"], 1):
        if left:
            return f"{listed(left, most=4)} still had gradients in step {number}"
    return None


def too_much_state(notes, case):
    """The look at most state; that at first is before any step."""
    looks = notes["state"] or [(0, "", 0, 0)]
    step, moment, held, shown = max(looks, key=lambda look: look[2])
    if held <= case.bound:
        return None
    when = f"in step {step}, {moment}" if step else moment
    views = f", in tensors with {shown} that are views" if shown <= case.bound else ""
    return f"there was state for {held} elements{views}, {when}"


def as_plain_training(exercise):
    """What both optimizers promise, but for how much they send."""
    exercise.cases(cases)
    exercise.drive(training_of(exercise.function))
    exercise.expected(expected)
    handles_are_waited_for(exercise)

    noted_on_each_rank(
        exercise,
        "param_groups_missing",
        wrong_groups,
        expects="param_groups is a list with a dict, with params and lr in it, on every rank",
        usually="a rank that owns nothing needs a list like that too, because schedules set lr on"
        " all ranks.",
        fix="Return inner.param_groups. Without an inner optimizer, that of an optimizer of the"
        " same class for [torch.zeros(1)] has all options.",
    )
    noted_on_each_rank(
        exercise,
        "not_cleared",
        left_by_zero_grad,
        expects="after zero_grad() the gradients of all parameters are None or zeros",
        usually="only what the inner optimizer holds was cleared, which is a part of the"
        " parameters, or copies of them; or nothing was cleared.",
        fix="Clear the parameters that were given to you. model.parameters() is an iterator that"
        " works only once, so begin with list(params).",
    )
    exercise.holds(
        "not_stepped",
        expects=PROMISE,
        usually="no rank owns these elements, their owner's step did not reach the model, or the"
        " owner's new weights did not reach the other ranks.",
        fix="A division with // rounds down: ⌈Ψ/n⌉ is -(-total // n). An inner optimizer that holds"
        " copies changes only the copies. model.parameters() is an iterator that works only once,"
        " so begin with list(params). After the inner step, broadcast or all_gather the new"
        " weights, and write them into the parameters.",
        first=True,
    )(stale)

    @exercise.holds(
        "inner_not_used",
        expects="an optimizer of the class that was given makes every step",
        usually="the step was computed by hand.",
        fix="Make optimizer_class(mine, **kwargs), and call its step().",
        first=True,
    )
    def _(run, case):
        for steps in zip(*(came["watched"]["inner_steps"] for came in run.came(case)), strict=True):
            if not any(steps):
                return f"no optimizer of the class {case.kind} stepped on any rank"
        return None

    noted_on_each_rank(
        exercise,
        "state_not_sharded",
        too_much_state,
        expects="each rank holds state for at most {bound} of {total} elements at any time:"
        " ⌈{total}/{n}⌉ = {share}, and {largest} of the largest parameter",
        usually="the inner optimizer holds more than this rank's part, perhaps only for a while, or"
        " views of large tensors. Every n-th parameter, or as many parameters for each rank, can"
        " give one rank all the large ones.",
        fix="Give the inner optimizer what this rank owns, and nothing else at any time; and each"
        " parameter to the rank that has the fewest elements so far, the largest ones first.",
        first=False,
    )


def allowed(case, most):
    """Elements that one step may send where ``most`` Ψ are allowed.

    A direction may take n shares as long as the longest one; flags and counts come on top.
    """
    filled_up = case.world * case.bound
    return 2 * filled_up + (most - 2) * case.total + 2 * case.parameters + 2 * case.world


def is_measured(case):
    """Whether what a step sends can be told from what fills up unequal parts."""
    return case.measured and case.world > 1


def most_sent(run, case):
    """The most that any step sends, in elements per rank."""
    return max(sum(volumes.values()) for volumes in volume_by_step(run, case))
