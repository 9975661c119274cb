"""Training with a wrapper: what NaiveDDP, OverlappedDDP and BucketedDDP have in common.

``trains_as_one_process(exercise)`` gives a declaration its drive, what one process makes of the
same rows, and what all three wrappers promise; ``travels_during_backward(exercise)`` adds what the
last two promise.
"""

import contextlib
import gc
import threading
import time
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

from multigpu.checking.comparing import Either
from multigpu.checking.declaration import case, sized
from multigpu.checking.verdicts import numbered
from multigpu.ranks import rank_device
from multigpu.ranks.errors import counted, listed

from .models import with_nan

LEARNING_RATE, MOMENTUM = 0.1, 0.9
START = "after the wrapper is made, every rank has the parameters and buffers of rank 0"
FORWARD = "forward calls the module with all that it is given, and returns what that returns"
TRAINING = (
    "every rank has the gradients and weights of one process that trains on the rows of all ranks"
)

# --- cases ---------------------------------------------------------------------------------------


def training(world, about, model, steps, how=(), **options):
    """One training run: ``model(rank)``, the rows ``steps[step][pass][rank]``, a wrapper's options.

    All passes of a step but its last one are made inside no_sync.  ``how`` may have "keep":
    gradients are zeroed and not set to None; "one_by_one": every layer's gradient is ready before
    the next one, so that overlapping can be seen; "handles": those that a rank holds are counted;
    "interrupted": an exception has come out of no_sync before.
    """
    title = ", ".join([counted(world, "rank"), about, *(f"{k}={v}" for k, v in options.items())])
    own = {"model": model, "steps": steps, "how": how, "options": options}
    return case(title, world=world, calls=False, promise=TRAINING if steps else START, **own)


def start(world):
    """Only make the wrapper, where other ranks have other numbers, and a nan and an inf."""
    return training(world, "when the wrapper is made", with_nan, [])


def calls(world):
    """Only call forward, with several inputs, and with a name."""
    title = f"{counted(world, 'rank')}, forward"
    return case(title, world=world, calls=True, steps=[], promise=FORWARD)


# --- one rank's run ------------------------------------------------------------------------------


def drive_of(name):
    """Run one case with the learner's class of this name."""

    def drive(submission, case, rank):
        wrapper = getattr(submission, name)
        return forwarded(wrapper, rank_device()) if case.calls else trained(wrapper, case, rank)

    return drive


def trained(wrapper, case, rank):
    """One rank's training: all that it holds, step by step, and what properties look at."""
    module = case.model(rank).to(rank_device())
    watch = Watch(module)
    model = wrapper(module, **case.options)
    if not case.steps:
        return {name: tensor.detach().clone() for name, tensor in tensors_of(module).items()}
    swallowed = "interrupted" in case.how and interrupt(model, module, case.steps[0][-1][rank])
    optimizer = torch.optim.SGD(module.parameters(), LEARNING_RATE, momentum=MOMENTUM)
    came, notes, held = {}, [], 0
    for number, passes in enumerate(case.steps, 1):
        optimizer.zero_grad(set_to_none="keep" not in case.how)
        watch.clear()
        thread = threading.get_native_id()
        note: dict[str, Any] = {"number": number, "quiet": None, "thread": thread}
        before = weights_of(module)
        if passes[1:]:
            note["quiet"] = no_sync_passes(model, passes[:-1], rank)
            came |= gradients_of(module, f"step {number}, inside no_sync")
        loss = loss_of(model, passes[-1][rank])
        note["began"] = time.monotonic()
        loss.backward()
        note["backward_ended"] = time.monotonic()
        model.sync_gradients()
        note["ended"] = time.monotonic()
        after = weights_of(module)
        note["moved"] = [n for n in before if not torch.equal(before[n], after[n])]
        note["own"] = watch.still_own()
        note["ready"] = max(watch.ready.values(), default=note["backward_ended"])
        notes.append(note)
        came |= gradients_of(module, f"step {number}")
        optimizer.step()
        came |= {f"after step {number}: {n}": weight for n, weight in weights_of(module).items()}
        if "handles" in case.how:
            note["handles"] = held = handles(held)
    return came | {"watched": {"steps": notes, "swallowed": swallowed}}


def loss_of(model, pair):
    inputs, targets = (tensor.to(rank_device()) for tensor in pair)
    return mse_loss(model(inputs), targets)


def no_sync_passes(model, passes, rank):
    """Forward and backward inside no_sync; when that began and ended."""
    began = time.monotonic()
    with model.no_sync():
        for pairs in passes:
            loss_of(model, pairs[rank]).backward()
            model.sync_gradients()
    return began, time.monotonic()


class Interruption(Exception):
    """What can come out of forward or backward: no memory left, a row that cannot be read."""


def interrupt(model, module, pair):
    """Raise inside no_sync, after a backward pass.  Whether no_sync has kept that to itself."""
    swallowed = False
    with contextlib.suppress(Interruption):
        with model.no_sync():
            loss_of(model, pair).backward()
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

    number = held_handles()
    if number > before:
        let_gloo_finish()
        number = held_handles()
    return number


def held_handles():
    kinds = (dist.Work, torch.futures.Future)
    gc.collect()  # a handle in a cycle of references is not in use
    # isinstance would ask a proxy for the class of an object that may be gone
    return sum(issubclass(type(found), kinds) for found in gc.get_objects())


class Watch:
    """Notes when each gradient of a step was ready last, and what it was then.

    These hooks are the first ones, so they run before those of the learner.
    """

    def __init__(self, module):
        self.clear()
        self.trainable = {n: p for n, p in module.named_parameters() if p.requires_grad}
        for name, parameter in self.trainable.items():
            parameter.register_post_accumulate_grad_hook(self.hook(name))

    def clear(self):
        self.ready, self.gradients = {}, {}

    def hook(self, name):
        def note(parameter):
            self.ready[name] = time.monotonic()
            self.gradients[name] = parameter.grad.detach().clone()

        return note

    def still_own(self):
        """By name, whether ``.grad`` is still this rank's own; empty if it did not use them all."""
        if self.gradients.keys() != self.trainable.keys():
            return {}
        now = {name: p.grad for name, p in self.trainable.items()}
        return {
            name: now[name] is not None and torch.equal(now[name], own)
            for name, own in self.gradients.items()
            if own.any()
        }


def gradients_of(module, moment):
    return {
        f"{moment}: {name}.grad": None if p.grad is None else p.grad.detach().clone()
        for name, p in module.named_parameters()
        if p.requires_grad
    }


def weights_of(module):
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def tensors_of(module):
    """Parameters and buffers, by name."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


# --- what one process computes -------------------------------------------------------------------


def expected(case):
    """For every rank: rank 0's start, or gradients and weights of training on all ranks' rows."""
    if case.calls:
        return [forwarded(lambda module: module, "cpu")] * case.world
    model = case.model(0)
    if not case.steps:
        return [{name: tensor.detach() for name, tensor in tensors_of(model).items()}] * case.world
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, momentum=MOMENTUM)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    right = [{} for _ in range(case.world)]
    for number, passes in enumerate(case.steps, 1):
        # Of each rank's own gradients:
        sums: list[dict[str, Any]] = [dict.fromkeys(trainable) for _ in right]
        for done, pairs in enumerate(passes, 1):
            for own, sum_of, pair in zip(right, sums, pairs, strict=True):
                add_gradients(sum_of, mse_loss(model(pair[0]), pair[1]), trainable)
                if 1 <= done == len(passes) - 1:
                    moment = f"step {number}, inside no_sync"
                    own |= {
                        f"{moment}: {n}.grad": or_zeros(sum_of[n], trainable[n]) for n in sum_of
                    }
        for name, parameter in trainable.items():
            there = [sum_of[name] for sum_of in sums if sum_of[name] is not None]
            parameter.grad = sum(there) / case.world if there else None
        for own in right:
            own |= {f"step {number}: {n}.grad": or_zeros(p.grad, p) for n, p in trainable.items()}
        optimizer.step()
        weights = weights_of(model)
        largest = max(float(weight.abs().max()) for weight in weights.values())
        for own in right:
            own |= {f"after step {number}: {n}": sized(largest, p) for n, p in weights.items()}
    return right


def add_gradients(sum_of, loss, trainable):
    parts = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
    for name, part in zip(trainable, parts, strict=True):
        if part is not None:
            sum_of[name] = part if sum_of[name] is None else sum_of[name] + part


def or_zeros(gradient, parameter):
    """A gradient that no rank has may be None or zeros."""
    zeros = torch.zeros_like(parameter.detach())
    return Either(None, zeros) if gradient is None else gradient


# --- what all wrappers promise -------------------------------------------------------------------


def trains_as_one_process(exercise):
    """The drive, the right results, and what is looked at besides."""
    exercise.drive(drive_of(exercise.function))
    exercise.expected(expected)

    in_each_step(
        exercise,
        "not_waited",
        lambda note, sent, case: of_all(
            [call for call in sent if call.end is None or call.end > note["ended"]],
            sent,
            "had not been waited for",
        ),
        expects="when sync_gradients returns, every all-reduce has been waited for",
        usually="wait() was not called on every handle: one was thrown away, replaced by the next"
        " one, or left out of a loop; and is_completed() does not wait.",
        fix="async_op=True returns a handle, and the numbers are there after handle.wait(): keep"
        " all handles in a list, and wait for each.",
    )
    in_each_step(
        exercise,
        "written_on_the_way",
        lambda note, sent, case: of_all(
            [call for call in sent if call.changed], sent, "were written into"
        ),
        expects="no rank writes into a tensor from the start of its all-reduce until handle.wait()",
        usually="the gradients were divided too early; or handles of the step before are still in"
        " the list, and so their gradients are divided again.",
        fix="The result can arrive at any moment until wait(): write after it, and empty the list.",
    )
    in_each_step(
        exercise,
        "weights_changed",
        lambda note, sent, case: note["moved"] and f"{listed(note['moved'], most=3)} changed",
        expects="only gradients change in backward and sync_gradients",
        usually="weights were averaged in place of gradients. (A hook on a parameter is called with"
        " the parameter, not with its gradient.)",
        fix="Send parameter.grad. Weights are sent once, when the wrapper is made.",
    )


def of_all(some, sent, what):
    """For example "2 of 5 all-reduces had not been waited for", and the line of the first."""
    return some and (f"{len(some)} of {counted(len(sent), 'all-reduce')} {what}", some[0].place)


def some_are_averaged(exercise, usually, fix):
    """Either all gradients of a rank are averaged or none."""

    def some_own(note, sent, case):
        own = [name for name, is_own in note["own"].items() if is_own]
        if case.world == 1 or not 0 < len(own) < len(note["own"]):
            return None
        return f"the gradients of {listed(own, most=4)} are still those of this rank's own rows"

    in_each_step(
        exercise,
        "some_not_averaged",
        some_own,
        expects="every gradient on every rank is the mean over all ranks",
        usually=usually,
        fix=fix,
    )


def in_each_step(exercise, name, wrong, *, first=True, of=None, **sentences):
    """A property of each step: ``wrong(note, sent, case)`` says what must not be, in words that
    follow "on rank 1, step 2,", perhaps with the line to blame, or returns something false.
    """

    @exercise.holds(name, first=first, **sentences)
    def _(run, case):
        for rank, note, sent in (of or steps_of)(run, case):
            found = wrong(note, sent, case)
            if found:
                words, line = found if isinstance(found, tuple) else (found, "")
                return f"on rank {rank}, step {note['number']}, {words}", line
        return None


def steps_of(run, case):
    """Rank, note and collectives of gradients: step by step, in each step rank by rank."""
    for number in range(len(case.steps)):
        for rank, came in enumerate(run.came(case)):
            note = notes_of(came)[number]
            yield rank, note, sent_in(run, rank, note["began"], note["ended"])


def notes_of(came):
    """What properties look at, step by step."""
    return came["watched"]["steps"] if "watched" in came else []


def sent_in(run, rank, began, ended):
    """The collectives with gradients in this time, as they were started."""
    found = run.trace.collectives(rank)
    return [call for call in found if began <= call.time <= ended and call.dtype == "float64"]


# --- forward -------------------------------------------------------------------------------------


class Echo(nn.Module):
    """Returns its inputs, in a tuple if there are several without name, else in a dict."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))  # something to be sent
        self.given: Any = None

    def forward(self, *inputs, **named):
        self.given = [*inputs], named
        return (*inputs, *named.values()) if len(inputs) > 1 else {"inputs": inputs, **named}


def forwarded(wrapper, device):
    """What forward returns and gives the module, for two inputs and a mask, and for one of each."""
    module, came = Echo().to(device), {}
    model = wrapper(module)
    first, second, mask = (torch.arange(3.0).double().to(device) + i for i in range(3))
    for inputs in ((first, second), (first,)):
        call, module.given = f"model({', '.join('x' for _ in inputs)}, mask=...)", None
        try:
            returned = model(*inputs, mask=mask)
        except TypeError as error:  # what Python says of a call that does not fit
            returned = str(error)
        came |= {f"what {call} returns": returned, f"what {call} gives the module": module.given}
    return came


# --- while backward computes ---------------------------------------------------------------------


def travels_during_backward(exercise):
    """Gradients are sent while backward computes others, and backward does not wait."""
    in_each_step(
        exercise,
        "starts_late",
        started_late,
        expects="every all-reduce is started during backward, as soon as what it sends is ready",
        usually="all of them, or the rest, are started in sync_gradients or at the end of backward;"
        " or what hooks count inside no_sync still counts in the backward after it.",
        fix="Start each in a hook, as soon as what it sends is ready:"
        " parameter.register_post_accumulate_grad_hook. Inside no_sync nothing is counted.",
        first=False,
        of=overlapped_steps,
    )
    in_each_step(
        exercise,
        "blocks_backward",
        lambda note, sent, case: of_all(
            [call for call in sent if blocks(call, note)], sent, "held up backward"
        ),
        expects="backward continues at once, and sync_gradients waits",
        usually="without async_op=True, and with .wait() right after it, nothing is computed while"
        " the bytes travel.",
        fix="Start with async_op=True in the hook, and wait in sync_gradients.",
        first=False,
        of=overlapped_steps,
    )


def overlapped_steps(run, case):
    """The steps in which overlapping can be seen."""
    if case.world > 1 and not case.calls and "one_by_one" in case.how:
        yield from steps_of(run, case)


def started_late(note, sent, case):
    """Whether too many collectives were started after the last gradient was ready."""
    late = [call for call in sent if call.time > note["ready"]]
    # A thread of the learner's may be held up by other ranks: of it only the first one counts.
    own = [call for call in late if call.thread == note["thread"]]
    too_many = len(own) > 1 or len(late) == len(sent) > 1
    what = "had not been started when the last gradient was ready"
    return too_many and of_all(late, sent, what)


def blocks(call, note):
    """Whether the thread that runs backward was held up by this call."""
    held_up = call.waited if call.is_async else call.time
    return held_up is not None and held_up < note["ready"] and call.thread == note["thread"]


def handles_are_let_go(exercise):
    """A rank does not hold more handles after each step."""

    @exercise.holds(
        "keeps_handles",
        expects="handles that were waited for are let go of",
        usually="they stay in a list that is never emptied: what was sent stays in memory, and a"
        " loop over the list waits for all of it again.",
        fix="Empty the list after the last wait().",
    )
    def _(run, case):
        for rank, came in enumerate(run.came(case)):
            held = [note["handles"] for note in notes_of(came) if "handles" in note]
            # Those of one step longer may be held.
            if held[2:] and all(before < after for before, after in pairwise(held)):
                steps = numbered("step", range(1, len(held) + 1))
                return f"on rank {rank} there were {listed(held)} handles after {steps}"
        return None
