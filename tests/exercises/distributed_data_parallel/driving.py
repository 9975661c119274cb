"""Trains with a learner's wrapper on one rank, and notes all that a check looks at."""

import contextlib
import gc
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

from multigpu.checking.comparing import snapshot
from multigpu.ranks import rank_device

from .forwarding import forwarded
from .one_process import LEARNING_RATE, MOMENTUM


def drive(submission, name, cases):
    """Every case in one run: (make model, options of the wrapper, steps, how).

    Calls of forward come first, so that the learner's last line is one of training.
    """
    wrapper = getattr(submission, name)
    calls = forwarded(wrapper)
    return {"forward": calls, "cases": [train(wrapper, *case) for case in cases]}


def train(wrapper, model_of, options, steps, how):
    """One rank's training.  All passes of a step but its last one are made inside no_sync.

    With "keep" in ``how`` gradients are zeroed, and not set to None; with "handles" these are
    counted after each step; with "interrupted" an exception has come out of no_sync before.
    """
    rank = dist.get_rank()
    module = model_of(rank).to(rank_device())
    ready = watch(module)
    model = wrapper(module, **options)
    start = copied(snapshot(module))
    swallowed = "interrupted" in how and interrupt(model, module, on_device(steps[0][-1][rank]))
    optimizer = torch.optim.SGD(module.parameters(), LEARNING_RATE, momentum=MOMENTUM)
    done = []
    for passes in steps:
        optimizer.zero_grad(set_to_none="keep" not in how)
        ready.clear()
        before = weights_of(module)
        quiet = no_sync_passes(model, module, passes[:-1], rank) if passes[1:] else None
        inputs, targets = on_device(passes[-1][rank])
        loss = mse_loss(model(inputs), targets)
        times = [time.monotonic()]
        loss.backward()
        times.append(time.monotonic())
        model.sync_gradients()
        times.append(time.monotonic())
        after = weights_of(module)
        note = {
            "gradients": gradients_of(module),
            "moved": [n for n in before if not torch.equal(before[n], after[n])],
            "times": times,  # backward begins, backward ends, sync_gradients ends
            "ready": dict(ready),
            "quiet": quiet,
        }
        optimizer.step()
        note["weights"] = weights_of(module)
        if "handles" in how:
            note["handles"] = handles(done[-1]["handles"] if done else 0)
        done.append(note)
    return {
        "start": start,
        "steps": done,
        "thread": threading.get_native_id(),
        "swallowed": swallowed,
    }


def no_sync_passes(model, module, passes, rank):
    """Forward and backward inside no_sync, and what is in ``.grad`` after that."""
    begin = time.monotonic()
    with model.no_sync():
        for ranks in passes:
            inputs, targets = on_device(ranks[rank])
            mse_loss(model(inputs), targets).backward()
            model.sync_gradients()
    return {"times": [begin, time.monotonic()], "gradients": gradients_of(module)}


class Interruption(Exception):
    """What can come out of forward or backward: no memory left, a row that cannot be read."""


def interrupt(model, module, pair):
    """Raise inside no_sync, after a backward pass.  Whether no_sync has kept that to itself."""
    inputs, targets = pair
    swallowed = False
    with contextlib.suppress(Interruption):
        with model.no_sync():
            mse_loss(model(inputs), targets).backward()
            raise Interruption
        swallowed = True
    module.zero_grad()
    return swallowed


def handles(before):
    """How many handles of messages this rank holds, ``before`` being how many it held.

    Gloo's thread drops its own a moment after a message is done: more than before are counted
    again when that has happened.
    """
    from multigpu.training.distributed import let_gloo_finish

    number = held()
    if number > before:
        let_gloo_finish()
        number = held()
    return number


def held():
    kinds = (dist.Work, torch.futures.Future)
    gc.collect()  # a handle in a cycle of references is held by nobody
    # isinstance would ask a proxy for the class of an object that may be gone
    return sum(issubclass(type(found), kinds) for found in gc.get_objects())


def on_device(pair):
    return [tensor.to(rank_device()) for tensor in pair]


def watch(module):
    """The moment at which each gradient was ready last, by name.

    These hooks are the first ones, so they run before those of the learner.
    """
    ready = {}

    def note(name):
        def hook(parameter):
            ready[name] = time.monotonic()

        return hook

    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(note(name))
    return ready


def gradients_of(module):
    return {
        name: None if p.grad is None else p.grad.detach().clone()
        for name, p in module.named_parameters()
        if p.requires_grad
    }


def weights_of(module):
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def copied(snap):
    return {
        kind: {name: tensor.detach().clone() for name, tensor in snap[kind].items()}
        for kind in ("parameters", "buffers")
    }
