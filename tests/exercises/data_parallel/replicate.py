"""``data_parallel.replicate``: a complete, independent copy of the model on every GPU."""

import copy
import itertools
from typing import Any

import torch
from torch import nn

from multigpu.checking.declaration import case, exercise, on
from multigpu.checking.specimen import WIDTH, Specimen, seeded
from multigpu.ranks.errors import listed
from multigpu.training.models import SmallCNN

replicate = exercise(
    "data_parallel.replicate",
    expects="a list of {n} modules, each on its GPU: `module` and copies that share nothing",
)


@replicate.cases
def cases():
    for n in (3, 2, 4):
        yield a_case("the model has tied and frozen layers", Specimen(seed=1), range(n), n)
        yield a_case("the model is a small CNN", seeded(SmallCNN, 1), range(n), n)
    yield a_case("then each replica trains", Specimen(seed=5), range(3), 3, trains=True)
    evaluating = Specimen(seed=3).eval()
    evaluating.encode.train()
    yield a_case("one layer is in train mode", evaluating, range(2), 2)
    for order in ([1, 0], [3, 1, 2, 0], [1]):
        yield a_case("the model is on the CPU", Specimen(seed=4), order, 4)
    for order, source in [([2, 0, 1], 1), ([1, 2], 0)]:
        yield a_case(f"the model is on cuda:{source}", Specimen(seed=4), order, 4, source)


def a_case(what, model, order, n, source=None, trains=False):
    """A model on the CPU, or on GPU ``source``, and one replica on each of the GPUs ``order``."""
    title = f"devices = {listed(f'cuda:{i}' for i in order)}; {what}"
    order = [*order]
    return case(title, gpus=n, model=model, order=order, source=source, trains=trains)


@replicate.drive
def drive(submission, case, devices):
    module = copy.deepcopy(case.model)
    if case.source is not None:
        module.to(devices[case.source])
    gpus = tuple(devices[i] for i in case.order)
    replicas = seeded(lambda: submission.replicate(module, gpus), 0)
    if not isinstance(replicas, list | tuple):
        return replicas
    came: dict[str, Any] = {"len(replicas)": len(replicas)}
    came["`replicas[0] is module`"] = bool(replicas) and replicas[0] is module
    for i, replica in enumerate(replicas):
        came[f"`isinstance(replicas[{i}], nn.Module)`"] = isinstance(replica, nn.Module)
        if isinstance(replica, nn.Module):
            came[f"what replicas[{i}] shares"] = shared(replicas[:i], replica)
            came |= facts(i, replica)
    if case.trains:
        for i, replica in enumerate(replicas):
            came |= trained(i, replica)
    return came


def facts(i, replica):
    """What there is to know about replica i, by the expression that tells it."""
    parameters = dict(replica.named_parameters(remove_duplicate=False))
    tensors = parameters | dict(replica.named_buffers(remove_duplicate=False))
    it = f"replicas[{i}]"
    return {
        **{f"{it}.{name}": tensor.detach().clone() for name, tensor in tensors.items()},
        **{f"{it}.{name}.is_leaf": tensor.is_leaf for name, tensor in parameters.items()},
        **{
            f"{it}.{name}.requires_grad": tensor.requires_grad
            for name, tensor in parameters.items()
        },
        **{
            f"`{it}.{name} is {it}.{other}`": parameters[name] is parameters[other]
            for name, other in itertools.combinations(parameters, 2)
            if name.endswith("weight") and other.endswith("weight")
        },
        **{
            f"{it}.{name}.training".replace("..", "."): part.training
            for name, part in replica.named_modules()
        },
    }


def shared(others, replica):
    """The first module, parameter or buffer that is in another replica too."""
    for name, part in parts(replica):
        for i, other in enumerate(others):
            if isinstance(other, nn.Module) and any(part is each for _, each in parts(other)):
                return f"{name or 'all'}, with replicas[{i}]"
    return "nothing"


def parts(replica):
    return [*replica.named_modules(), *replica.named_parameters(), *replica.named_buffers()]


def trained(i, replica):
    """What replica i computes by itself, forward and backward."""
    rows = torch.linspace(-1, 1, 2 * WIDTH, dtype=torch.float64).reshape(2, WIDTH)
    output = replica(rows.to(next(replica.parameters()).device))
    output.sum().backward()
    gradients = {f"replicas[{i}].{name}.grad": p.grad for name, p in replica.named_parameters()}
    return {f"the output of replicas[{i}]": output} | gradients


@replicate.expected
def expected(case):
    right: dict[str, Any] = {"len(replicas)": len(case.order), "`replicas[0] is module`": True}
    for i in range(len(case.order)):
        right[f"`isinstance(replicas[{i}], nn.Module)`"] = True
        right[f"what replicas[{i}] shares"] = "nothing"
    for i, gpu in enumerate(case.order):
        for name, value in facts(i, case.model).items():
            right[name] = on(f"cuda:{gpu}", value) if isinstance(value, torch.Tensor) else value
    if case.trains:
        for i in range(len(case.order)):
            right |= trained(i, copy.deepcopy(case.model))
    return right


@replicate.words
def words(case):
    return {"n": len(case.order)}


@replicate.right
def copies_on_the_cpu_first(module, devices):
    copies = [copy.deepcopy(module) for _ in devices[1:]]
    return tuple(model.to(device) for model, device in zip([module, *copies], devices))


def with_copies(module, devices, change):
    """The module and changed copies, each on its GPU."""
    module.to(devices[0])
    return [module, *(change(copy.deepcopy(module)).to(device) for device in devices[1:])]


@replicate.mistake(
    "same_object",
    "module.to(device) moves the module itself and returns it, so all {n} entries are one model.",
    fix="Make a copy for each further GPU: copy.deepcopy(module).to(device).",
)
def moves_one_model_around(module, devices):
    return [module.to(device) for device in devices]


@replicate.mistake(
    "first_is_a_copy",
    "the first replica is a copy too, and the optimizer would train a model that is not used.",
    fix="Let replicas[0] be `module` itself, moved to devices[0].",
)
def copies_the_first_too(module, devices):
    return [copy.deepcopy(module).to(device) for device in devices]


@replicate.mistake(
    "counts_gpus_itself",
    "replica i went to GPU number i, whatever `devices` holds.",
    fix="Use devices[i]: the list may be in any order.",
)
def ignores_the_order_of_devices(module, devices):
    return with_copies(module, [f"cuda:{i}" for i in range(len(devices))], lambda replica: replica)


@replicate.mistake(
    "shared",
    "copy.copy copies the outer object only, and the replicas share everything in it.",
    fix="Use copy.deepcopy.",
)
def shallow_copies(module, devices):
    module.to(devices[0])
    return [module] + [copy.copy(module) for _ in devices[1:]]


@replicate.mistake(
    "untied",
    "every layer got a parameter of its own, although two of them share one in the model.",
    fix="Copy the whole model in one copy.deepcopy, which keeps what is tied.",
)
def copies_layer_by_layer(module, devices):
    def untied(layer):
        for name, parameter in layer.named_parameters(recurse=False):
            own = parameter.detach().clone()
            layer._parameters[name] = nn.Parameter(own, parameter.requires_grad)

    return with_copies(module, devices, lambda replica: replica.apply(untied))


@replicate.mistake(
    "non_persistent_lost",
    "state_dict() leaves out buffers with persistent=False, here `position`.",
    fix="copy.deepcopy copies all buffers.",
)
def new_model_with_the_state_dict(module, devices):
    def emptied(layer):
        for name in layer._non_persistent_buffers_set:
            getattr(layer, name).zero_()

    return with_copies(module, devices, lambda replica: replica.apply(emptied))


@replicate.mistake(
    "mode_lost",
    "train() changes every layer of a copy, and a newly built model is in train mode everywhere.",
    fix="Each layer keeps its own mode, as copy.deepcopy does: leave train() and eval() out.",
)
def everything_into_train_mode(module, devices):
    return with_copies(module, devices, lambda replica: replica.train())


@replicate.mistake(
    "requires_grad_lost",
    "all parameters of the copies are trainable, which is what nn.Parameter(tensor) makes.",
    fix="Copy requires_grad too, as copy.deepcopy does.",
)
def thaws_frozen_layers(module, devices):
    return with_copies(module, devices, lambda replica: replica.requires_grad_())
