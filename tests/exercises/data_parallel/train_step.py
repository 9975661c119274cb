"""``data_parallel.train_step``: the same training as on one GPU, step after step.

The mistakes call the other functions of the module, which are those of the solution.
"""
# ruff: noqa: F821
# mypy: disable-error-code="name-defined"

import copy
import math
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from multigpu.checking.declaration import case, exercise, on
from multigpu.checking.specimen import WIDTH, Fork, Specimen, batch, seeded
from multigpu.ranks.errors import counted, listed
from multigpu.training.models import SmallCNN

from .replicas import placed

train_step = exercise(
    "data_parallel.train_step",
    expects="after each step all replicas have the weights that one GPU would have, and the loss is"
    " that of the whole batch before the step, as a float",
    share_of=lambda case: math.prod(len(inputs) for inputs, _ in case.batches),
)


@train_step.cases
def cases():
    for n in (3, 2, 4, 1):
        yield a_case(range(n), batches_of(2 * n))
        if n > 1:
            yield a_case(range(n), batches_of(2 * n, 2 * n + 1), example=n == 3)
            yield a_case(range(n), batches_of(2 * n + 1, 1))
            yield a_case(range(n), batches_of(3 * n - 1, n - 1))
    cnn, loss_fn = seeded(SmallCNN, 7).double(), nn.CrossEntropyLoss()
    images = batches_of(7, 4, widths=(64, 10))
    images = [(rows.reshape(-1, 1, 8, 8), scores.argmax(dim=1)) for rows, scores in images]
    yield a_case(range(3), images, model=cnn, loss_fn=loss_fn)
    batches = [batch(width, 2, seed=width + n, count=n) for n, width in ((6, 3), (5, 6), (4, 3))]
    yield a_case(range(3), batches, model=seeded(Fork, 7), what="two layers in turn, ")
    for order in ([2, 0, 1], [1]):
        yield a_case(order, batches_of(6, 4), gpus=3)
    for source in (0, 1):
        yield a_case(range(2), batches_of(5, 4), source=source, what=f"rows on cuda:{source}, ")


def a_case(order, batches, model=None, loss_fn=None, gpus=None, source=None, what="", **more):
    """Training on the GPUs ``order``, with rows that are on the CPU or on GPU ``source``."""
    rows = listed(len(inputs) for inputs, _ in batches)
    gpu = listed(f"cuda:{i}" for i in order)
    title = f"{what}{counted(len(batches), 'step')} with {rows} rows on {gpu}"
    return case(
        title,
        gpus=gpus or len(order),
        order=[*order],
        batches=batches,
        model=model or Specimen(seed=7),
        loss_fn=loss_fn or nn.functional.mse_loss,
        source=source,
        **more,
    )


def batches_of(*rows, widths=(WIDTH, WIDTH)):
    return [batch(*widths, seed=10 * sum(rows) + n, count=n) for n in rows]


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


@train_step.drive
def drive(submission, case, devices):
    replicas = placed([case.model] * len(case.order), devices, case.order)
    optimizer, came = optimizer_of(replicas[0]), dict[str, Any]()
    for step, given in enumerate(case.batches, 1):
        inputs, targets = (
            t.clone() if case.source is None else t.to(devices[case.source]) for t in given
        )
        with busy_gpus() as busy:
            loss = submission.train_step(replicas, inputs, targets, case.loss_fn, optimizer)
        came["the result"] = None if loss is None else type(loss).__name__
        if isinstance(loss, float):
            came[f"the loss in step {step}"] = torch.tensor(loss, dtype=torch.float64)
        for i, replica in enumerate(replicas):
            came |= weights_of(replica, i, step)
            stale = [n for n, b in replica.named_buffers() if not as_in(replicas[0], n, b)]
            came[f"the list of stale buffers in replica {i} after step {step}"] = listed(stale)
        idle = [f"cuda:{i}" for i in case.order if f"cuda:{i}" not in busy]
        came[f"the list of idle GPUs in step {step}"] = listed(idle)
        pairs = zip(("inputs", "targets"), (inputs, targets), given, strict=True)
        changed = [name for name, now, old in pairs if not torch.equal(now.cpu(), old)]
        came[f"the list of arguments that step {step} changed"] = listed(changed)
    return came


@contextmanager
def busy_gpus():
    """The names of the GPUs on which layers with weights run inside the block.

    A hook on all modules sees copies of the replicas, too, and a layer whose model was not called
    but its ``forward``.
    """
    busy = set()

    def note(module, inputs, output):
        if next(module.parameters(), None) is not None:
            busy.add(str(output.device))

    hook = nn.modules.module.register_module_forward_hook(note)
    try:
        yield busy
    finally:
        hook.remove()


def as_in(first, name, buffer):
    return torch.equal(first.get_buffer(name).cpu(), buffer.cpu())


def weights_of(replica, i, step):
    return {
        f"{name} of replica {i} after step {step}": parameter.detach().clone()
        for name, parameter in replica.named_parameters()
    }


@train_step.expected
def expected(case):
    model, n = copy.deepcopy(case.model), len(case.order)
    optimizer, right = optimizer_of(model), dict[str, Any]({"the result": "float"})
    for step, (inputs, targets) in enumerate(case.batches, 1):
        optimizer.zero_grad()
        loss = case.loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        for i, gpu in enumerate(case.order):
            for name, weights in weights_of(model, i, step).items():
                right[name] = on(f"cuda:{gpu}", weights)
            right[f"the list of stale buffers in replica {i} after step {step}"] = "none"
        right[f"the loss in step {step}"] = loss.detach()
        if len(inputs.chunk(n)) == n:
            right[f"the list of idle GPUs in step {step}"] = "none"
        right[f"the list of arguments that step {step} changed"] = "none"
    return right


@train_step.words
def words(case):
    return {"n": len(case.order)}


# --- what answers are made of --------------------------------------------------------------------


def clear(replicas):
    for replica in replicas:
        replica.zero_grad()


def outputs_of(replicas, inputs, targets):
    """Chunk by chunk, with their targets."""
    devices = [next(replica.parameters()).device for replica in replicas]
    outputs = parallel_apply(replicas, split(inputs, devices))
    return list(zip(outputs, split(targets, devices)))


def of_the_whole(loss_fn, pairs):
    home = pairs[0][0].device
    loss = loss_fn(*(gather(parts, home) for parts in zip(*pairs)))
    loss.backward()
    return loss.item()


def nothing(*_):
    pass


def train(replicas, inputs, targets, loss_fn, optimizer, **instead):
    """A right step, with other functions ``instead`` of some of its own."""
    do = {"clear": clear, "backward": of_the_whole, "add": sum_gradients, "send": broadcast}
    do |= {"step": lambda _: optimizer.step()} | instead
    do["clear"](replicas)
    loss = do["backward"](loss_fn, outputs_of(replicas, inputs, targets))
    for part in ("add", "step", "send"):
        do[part](replicas)
    return loss


def weighted(loss_fn, pairs):
    """The losses of the chunks, after backward of each with its share of the rows."""
    losses, rows = [], sum(len(target) for _, target in pairs)
    for output, target in pairs:
        losses.append(loss_fn(output, target))
        (losses[-1] * (len(target) / rows)).backward()
    return [loss.item() for loss in losses]


@train_step.right
def weights_the_losses_of_the_chunks(replicas, inputs, targets, loss_fn, optimizer):
    def backward(loss_fn, pairs):
        losses, rows = weighted(loss_fn, pairs), [len(target) for _, target in pairs]
        return sum(loss * n for loss, n in zip(losses, rows)) / sum(rows)

    return train(replicas, inputs, targets, loss_fn, optimizer, backward=backward)


@train_step.mistake(
    "old_gradients_in_replicas",
    "other replicas still have old gradients: optimizer.zero_grad() clears replica 0 only.",
    fix="Clear all replicas: replica.zero_grad().",
)
def clears_the_first_replica_only(replicas, inputs, targets, loss_fn, optimizer):
    optimizer.zero_grad()
    return train(replicas, inputs, targets, loss_fn, optimizer, clear=nothing)


@train_step.mistake(
    "gradients_never_cleared",
    "nothing clears the gradients between two steps.",
    fix="Clear all replicas at the beginning of each step: replica.zero_grad().",
)
def clears_nothing(replicas, inputs, targets, loss_fn, optimizer):
    return train(replicas, inputs, targets, loss_fn, optimizer, clear=nothing)


@train_step.mistake(
    "unused_layer_moved",
    "an unused layer has gradients of zeros, and momentum goes on moving it.",
    fix="Set them to None, as zero_grad() does.",
)
def fills_with_zeros(replicas, inputs, targets, loss_fn, optimizer):
    for replica in replicas:
        replica.zero_grad(set_to_none=False)
    return train(replicas, inputs, targets, loss_fn, optimizer, clear=nothing)


@train_step.mistake(
    "replicas_stale",
    "the new weights were not sent to the other replicas after optimizer.step().",
    fix="Call broadcast(replicas) after it.",
)
def forgets_broadcast(replicas, inputs, targets, loss_fn, optimizer):
    return train(replicas, inputs, targets, loss_fn, optimizer, send=nothing)


@train_step.mistake(
    "buffers_stale",
    "only the parameters were sent to the other replicas.",
    fix="Send the buffers too, as broadcast(replicas) does.",
)
def broadcasts_parameters_only(replicas, inputs, targets, loss_fn, optimizer):
    @torch.no_grad()
    def send(replicas):
        for first, *others in zip(*(replica.parameters() for replica in replicas)):
            for other in others:
                other.copy_(first)

    return train(replicas, inputs, targets, loss_fn, optimizer, send=send)


@train_step.mistake(
    "mean_of_chunk_means",
    "the mean of the chunks' losses was trained, and chunks have different numbers of rows.",
    fix="Compute one loss from the gathered outputs, or weight each chunk's loss by its rows.",
)
def one_loss_per_chunk(replicas, inputs, targets, loss_fn, optimizer):
    def backward(loss_fn, pairs):
        losses = [loss_fn(*pair) / len(pairs) for pair in pairs]
        for loss in losses:
            loss.backward()
        return sum(loss.item() for loss in losses)

    return train(replicas, inputs, targets, loss_fn, optimizer, backward=backward)


@train_step.mistake(
    "gradients_not_summed",
    "the optimizer used replica 0's own gradients, because they were not summed before its step.",
    fix="Call sum_gradients(replicas) between backward and optimizer.step().",
)
def forgets_sum_gradients(replicas, inputs, targets, loss_fn, optimizer):
    return train(replicas, inputs, targets, loss_fn, optimizer, add=nothing)


@train_step.mistake(
    "gradients_divided",
    "the summed gradients were divided by {n} once more.",
    fix="Leave the sum as it is: the loss is a mean over all rows already.",
)
def divides_the_sum_again(replicas, inputs, targets, loss_fn, optimizer):
    def add(replicas):
        sum_gradients(replicas)
        for parameter in replicas[0].parameters():
            if parameter.grad is not None:
                parameter.grad /= len(replicas)

    return train(replicas, inputs, targets, loss_fn, optimizer, add=add)


@train_step.mistake(
    "no_step",
    "no weight changed: optimizer.step() was not called, or the gradients had been cleared before.",
    fix="Clear the gradients at the beginning, and call optimizer.step() after sum_gradients.",
)
def forgets_the_optimizer(replicas, inputs, targets, loss_fn, optimizer):
    return train(replicas, inputs, targets, loss_fn, optimizer, step=nothing)


@train_step.mistake(
    "loss_of_chunks",
    "the loss that was returned is the mean of the chunks' losses, and chunks differ in rows.",
    fix="Weight each chunk's loss by its rows, as in training.",
)
def returns_the_mean_of_the_chunks_losses(replicas, inputs, targets, loss_fn, optimizer):
    def backward(loss_fn, pairs):
        losses = weighted(loss_fn, pairs)
        return sum(losses) / len(losses)

    return train(replicas, inputs, targets, loss_fn, optimizer, backward=backward)


@train_step.mistake(
    "momentum_lost",
    "the momentum is missing: the weights were changed by hand or by a new optimizer.",
    fix="Call optimizer.step() of the optimizer that is given.",
)
def own_gradient_descent(replicas, inputs, targets, loss_fn, optimizer):
    @torch.no_grad()
    def step(replicas):
        for parameter in replicas[0].parameters():
            if parameter.grad is not None:
                parameter -= optimizer.param_groups[0]["lr"] * parameter.grad

    return train(replicas, inputs, targets, loss_fn, optimizer, step=step)


@train_step.mistake(
    "targets_not_moved",
    "the outputs are on a GPU, and the targets are not.",
    fix="Bring the targets to the GPU of the gathered outputs: targets.to(device).",
    status="crash",
)
def forgets_to_move_the_targets(replicas, inputs, targets, loss_fn, optimizer):
    def backward(loss_fn, pairs):
        outputs = [output for output, _ in pairs]
        return loss_fn(gather(outputs, outputs[0].device), targets).item()

    return train(replicas, inputs, targets, loss_fn, optimizer, backward=backward)
