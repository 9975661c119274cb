"""``data_parallel.sum_gradients``: the first replica gets the sum of all gradients."""

import torch

from multigpu.checking.declaration import case, exercise, on
from multigpu.checking.specimen import Specimen
from multigpu.ranks.errors import counted, listed

from .replicas import leaves_gradients_on, parameters_of, placed

sum_gradients = exercise(
    "data_parallel.sum_gradients",
    expects="each .grad of replica 0 is the sum over all replicas, and None where all are None",
)


@sum_gradients.cases
def cases():
    for n in (3, 2, 4):
        yield a_case("all trained parameters with gradients", range(n), example=n == 3)
        yield a_case(
            f"decode.bias.grad is None in replica 0, encode.bias.grad in replica {n - 1},"
            " gain.scale.grad in all of them",
            range(n),
            {"encode.bias": [n - 1], "decode.bias": [0], "gain.scale": range(n)},
        )
    for busy, n in {1: 3, 2: 4, 3: 4}.items():
        missing = dict.fromkeys(names(), range(busy, n))
        yield a_case(f"only the first {busy} had rows", range(n), missing)
    for order in ([1, 0], [2, 0, 1], [1]):
        yield a_case("encode.weight.grad is None in replica 0", order, {"encode.weight": [0]}, n=3)
    yield a_case("in float32", range(3), dtype=torch.float32)


def names():
    return [name for name, _ in Specimen(seed=1).named_parameters()]


def a_case(what, order, missing=None, n=None, dtype=torch.float64, **more):
    """Replicas on the GPUs ``order``; ``missing`` says by name which of them have no gradient."""
    generator = torch.Generator().manual_seed(len(order))
    missing = (missing or {}) | {"frozen.weight": range(len(order))}
    model = Specimen(seed=1).to(dtype)
    gradients = [
        {
            name: torch.randn(p.shape, generator=generator, dtype=dtype)
            for name, p in model.named_parameters()
            if i not in missing.get(name, ())
        }
        for i in range(len(order))
    ]
    title = f"{counted(len(order), 'replica')} on {listed(f'cuda:{i}' for i in order)}, {what}"
    return case(
        title, gpus=n or len(order), model=model, gradients=gradients, order=[*order], **more
    )


@sum_gradients.drive
def drive(submission, case, devices):
    replicas = placed([case.model] * len(case.order), devices, case.order)
    for replica, own in zip(replicas, case.gradients, strict=True):
        for name, gradient in own.items():
            parameter = replica.get_parameter(name)
            parameter.grad = gradient.to(parameter.device, copy=True)
    submission.sum_gradients(replicas)
    first = dict(replicas[0].named_parameters())
    return parameters_of(replicas) | {f"{name}.grad": p.grad for name, p in first.items()}


@sum_gradients.expected
def expected(case):
    gradients = {}
    for name in names():
        parts = [own[name] for own in case.gradients if name in own]
        home = f"cuda:{case.order[0]}"
        gradients[f"{name}.grad"] = on(home, sum(parts)) if parts else None
    return parameters_of([case.model] * len(case.order)) | gradients


@sum_gradients.words
def words(case):
    return {"n": len(case.order)}


leaves_gradients_on(sum_gradients)


@sum_gradients.right
def in_place_where_there_is_one(replicas):
    first = replicas[0]
    for replica in replicas[1:]:
        for mine, other in zip(first.parameters(), replica.parameters()):
            if other.grad is None:
                continue
            if mine.grad is None:
                mine.grad = torch.zeros_like(mine)
            mine.grad += other.grad.to(mine.device)


def add(first, gradient):
    arrived = gradient.to(first.device)
    first.grad = arrived if first.grad is None else first.grad + arrived


@sum_gradients.mistake(
    "averaged",
    "the sum was divided by the number of replicas, {n}.",
    fix="Only add: the loss is one mean over all rows of the batch, so it has divided already.",
)
def divides_by_the_replicas(replicas):
    for same in zip(*(replica.parameters() for replica in replicas)):
        present = [p.grad.to(same[0].device) for p in same if p.grad is not None]
        if present:
            same[0].grad = sum(present) / len(replicas)


@sum_gradients.mistake(
    "zeros_for_none",
    "the sum starts from zeros, also where no replica has a gradient.",
    fix="Leave None there: momentum or weight decay moves a parameter whose gradient is zero.",
)
def fills_up_with_zeros(replicas):
    for same in zip(*(replica.parameters() for replica in replicas)):
        total = torch.zeros_like(same[0])
        for p in same:
            if p.grad is not None:
                total += p.grad.to(total.device)
        same[0].grad = total


@sum_gradients.mistake(
    "first_had_none",
    "a parameter was skipped because replica 0 has no gradient for it.",
    fix="None counts as zero: the sum is that of the replicas that have one.",
)
def needs_a_gradient_in_the_first(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        if first.grad is None:
            continue
        for other in others:
            if other.grad is not None:
                first.grad += other.grad.to(first.device)


@sum_gradients.mistake(
    "tied_twice",
    "encode.weight and decode.weight are one parameter, which was added once for each name.",
    fix="replica.parameters() and replica.named_parameters() give it once.",
)
def tied_weights_once_per_name(replicas):
    first = dict(replicas[0].named_parameters(remove_duplicate=False))
    for replica in replicas[1:]:
        for name, other in replica.named_parameters(remove_duplicate=False):
            if other.grad is not None:
                add(first[name], other.grad)


@sum_gradients.mistake(
    "mixed_up",
    "gradients that are None were left out before zip, so gradients met the wrong parameters.",
    fix="Look for None inside the loop over zip(first.parameters(), other.parameters()).",
)
def filters_none_before_zip(replicas):
    first = [p for p in replicas[0].parameters() if p.grad is not None]
    for replica in replicas[1:]:
        gradients = [p.grad for p in replica.parameters() if p.grad is not None]
        for parameter, gradient in zip(first, gradients):
            parameter.grad = parameter.grad + gradient.to(parameter.device)


@sum_gradients.mistake(
    "last_one_wins", "each gradient replaced the one before.", fix="Add them up."
)
def overwrites(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            if other.grad is not None:
                first.grad = other.grad.to(first.device)


@sum_gradients.mistake(
    "nothing_added",
    "replica 0 has its old gradients: the sum is only in a variable, or in another replica.",
    fix="Store the sum in .grad of the parameters of replicas[0].",
)
def adds_into_a_copy(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        if first.grad is not None:
            total = first.grad.clone()
            for other in others:
                if other.grad is not None:
                    total += other.grad.to(first.device)


@sum_gradients.mistake(
    "none_not_handled",
    "a gradient is None, and the code takes it for a tensor.",
    fix="None counts as zero: leave it out of the sum, or store the gradient that arrives first.",
    status="crash",
)
def does_not_know_none(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            first.grad += other.grad.to(first.device)


@sum_gradients.mistake(
    "not_moved",
    "gradients on different GPUs were added.",
    fix="Move each one first: other.grad.to(first.device).",
    status="crash",
)
def forgets_to_move(replicas):
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            if other.grad is not None:
                first.grad = other.grad if first.grad is None else first.grad + other.grad
