"""Trains with a learner's Zero3 on one rank, and notes all that a check looks at."""

import gc
import time
import warnings
import weakref

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.utils._python_dispatch import _disable_current_modes

from multigpu.devices.threads import around_new_threads
from multigpu.ranks import rank_device

from .zero3_meter import Allowed, Meter

LEARNING_RATE, MOMENTUM = 0.1, 0.9


def drive(submission, cases):
    """Every case in one run: (make model, steps, rows to evaluate, what may be held)."""
    gc.freeze()  # what is there already need not be looked through each time
    # PyTorch says so of the first layer, whose inputs need no gradient. It is no mistake here.
    warnings.filterwarnings("ignore", "Full backward hook is firing when gradients")
    return [train(submission, *case) for case in cases]


def train(submission, model_of, steps, evaluation, allowed):
    """One rank's training, and forward without gradients after the first step and after the last.

    ``steps[s][rank]`` are inputs, inputs with a name, and targets.
    """
    rank = dist.get_rank()
    meter = Meter(submission.__file__, Allowed(*allowed))
    with meter, around_new_threads(lambda _: meter):
        module = model_of(rank).to(rank_device())
        for parameter in module.parameters():
            meter.see(parameter, weights=True)
        module_has = [weakref.ref(parameter) for parameter in module.parameters()]
        model = submission.Zero3(module)
        del module
        parameters = list(model.parameters())
        note = {"shards": [about(p) for p in parameters], "steps": [], "evaluated": []}
        if not parameters or not all(isinstance(p, torch.Tensor) for p in parameters):
            return note  # there is nothing to train
        meter.begin()
        note["start"] = meter.end()
        note["numbers"] = copied(parameters)
        optimizer = torch.optim.SGD(parameters, LEARNING_RATE, momentum=MOMENTUM)
        for s, ranks in enumerate(steps):
            note["steps"].append(
                one_step(meter, model, optimizer, ranks[rank], parameters, module_has)
            )
            if "gradients" not in note["steps"][-1]:
                break  # forward gave nothing to train with
            if s in (0, len(steps) - 1):
                note["evaluated"].append(evaluate(meter, model, evaluation[rank]))
    return note


def one_step(meter, model, optimizer, rows, parameters, module_has):
    """One step of training, with the memory of each of its phases."""
    inputs, named, targets = on_device(rows)
    for tensor in (*inputs, *named.values(), targets):
        meter.see(tensor)
    optimizer.zero_grad()
    meter.begin()
    times = [time.monotonic()]
    base = meter.base
    outputs = model(*inputs, **named)
    times.append(time.monotonic())
    memory = {"forward": meter.end()}
    in_module = stored(own() for own in module_has)
    note = {"outputs": copied(outputs)}
    if not isinstance(outputs, torch.Tensor):
        return note
    meter.begin()
    loss = mse_loss(outputs, targets)
    del outputs
    loss.backward()
    del loss
    times.append(time.monotonic())
    memory["backward"] = meter.end()
    note["gradients"] = [copied(parameter.grad) for parameter in parameters]
    gradients_hold = stored(parameter.grad for parameter in parameters)
    optimizer.step()
    meter.begin()
    memory["step"] = meter.end()
    note |= {"in_module": in_module, "gradients_hold": gradients_hold}
    return note | {"times": times, "memory": memory, "base": base}


def evaluate(meter, model, rows):
    """Forward in eval mode and without gradients, and back to training."""
    inputs, named, _ = on_device(rows)
    for tensor in (*inputs, *named.values()):
        meter.see(tensor)
    model.eval()
    meter.begin()
    base = meter.base
    with torch.no_grad():
        outputs = model(*inputs, **named)
    memory = {"evaluation": meter.end()}
    model.train()
    return {"outputs": copied(outputs), "memory": memory, "base": base}


def on_device(rows):
    inputs, named, targets = rows
    device = rank_device()
    moved = {name: tensor.to(device) for name, tensor in named.items()}
    return [tensor.to(device) for tensor in inputs], moved, targets.to(device)


def about(parameter):
    """How many elements a tensor has, and how many its storage keeps alive."""
    if not isinstance(parameter, torch.Tensor):
        return {"type": type(parameter).__name__}
    return {
        "elements": parameter.numel(),
        "stored": -(-parameter.untyped_storage().nbytes() // parameter.element_size()),
        "storage": parameter.untyped_storage()._cdata,
        "trained": parameter.requires_grad,
    }


def stored(tensors):
    """How many elements the storages behind these tensors hold; None is none."""
    found = [about(tensor) for tensor in tensors if tensor is not None]
    return sum({each["storage"]: each["stored"] for each in found}.values())


def copied(value):
    """Copies that count as nobody's memory; what is no tensor stays as it is."""
    if isinstance(value, list):
        return [copied(item) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    with _disable_current_modes():
        return value.detach().clone()
