"""A server and its workers train: the cases, how they run, what is right, and what may travel.

The two exercises are checked together: each with the other function of the same learner.  What
belongs to one of them is declared there.
"""

import time

import torch
import torch.distributed as dist

from multigpu.checking.declaration import case
from multigpu.checking.judging import compare
from multigpu.checking.probes import handles_are_waited_for
from multigpu.ranks import rank_device
from multigpu.ranks.errors import counted, listed

from .models import (
    adam,
    branches,
    decay,
    heavy,
    loss_fn,
    momentum,
    other_specimen,
    rows_for,
    rows_of_two_widths,
    sgd,
    small,
    specimen,
    train,
    weights_of,
)

EXPECTS = "in each step all have the weights of one process that trains on the workers' mean loss"
SLACK = 12_000  # bytes for headers, flags and pickled names; the parts of Heavy are larger
NO_BYTES = ("barrier", "new_group")


def each_training():
    """A case trains one model after the other: ``(model_of, optimizer_of, batches)`` of each."""
    for world in (3, 2, 4):
        if world != 3:  # with one worker, momentum would go on moving what a step does not use
            optimizer = momentum if world > 2 else sgd
            models = [(branches, optimizer, rows_of_two_widths(world))]
            yield a_case("losses that do not use every layer", world, models)
        rows = rows_for(world)
        optimizer = decay if world > 2 else adam
        models = [(specimen, optimizer, rows), (other_specimen, sgd, rows[1:])]
        yield a_case("tied and frozen parameters", world, models)
        if world == 3:
            rows = rows_for(world, steps=2, widths=(10, 100), dtype=torch.float32)
            yield a_case("a small model", world, [(small, sgd, rows[:1])])
            yield a_case("a larger model", world, [(heavy, momentum, rows)])


def a_case(title, world, models):
    """``world - 1`` workers may be none."""
    workers = counted(world - 1, "worker") if world > 1 else "no workers"
    return case(f"{workers}, {title}", world=world, workers=world - 1, models=models)


def drive_both(submission, case, rank, own):
    """Train the models of a case.  ``own`` is the exercise; the other function is looked at too.

    What came is the weights after each step.  What else happened in the steps is "watched".
    """
    place = rank_device() if dist.get_backend() == "nccl" else "cpu"  # gloo sends from the CPU
    side, came = "worker_step" if rank else "server_step", {}
    seen, stepped = [], []
    for number, (model_of, optimizer_of, batches) in enumerate(case.models, 1):
        model = model_of().to(place)
        if not rank:
            optimizer = optimizer_of(model.parameters())
            optimizer.register_step_post_hook(lambda *_: stepped.append(time.monotonic()))
        for step, workers in enumerate(batches, 1):
            name = f"step {step} of model {number}" if number > 1 else f"step {step}"
            if rank:
                inputs, targets = (rows.to(place) for rows in workers[rank - 1])
                loss = loss_fn(model(inputs), targets)
            before, began = weights_of(model), time.monotonic()
            buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
            stepped.clear()
            try:
                if rank:
                    submission.worker_step(model, loss)
                else:
                    submission.server_step(model, optimizer)
            except Exception as error:
                if side != own:
                    error.add_note(f"in {side}, which {own} works with")
                    if isinstance(error, NotImplementedError):
                        time.sleep(0.2)  # if the exercise itself is not written, it says so first
                raise
            came |= changes(name, before, weights_of(model))
            seen.append(
                {
                    "name": name,
                    "times": (began, time.monotonic()),
                    "stepped": [*stepped],
                    "buffers": changed(buffers, dict(model.named_buffers())),
                }
            )
    return came | {"watched": seen}


def changes(step, before, after):
    """What a step did to each parameter; the new one where a difference has too few digits."""
    found = {}
    for name, new in after.items():
        if new.dtype == torch.float64 and name in before:
            found[f"{step}, the change of {name}"] = new - before[name]
        else:
            found[f"{step}, {name}"] = new
    return found


def changed(before, now):
    """The names of tensors that are gone or have another type or other numbers."""
    pairs = {name: (old, now.get(name)) for name, old in before.items()}
    return [
        name
        for name, (old, new) in pairs.items()
        if new is None or new.dtype != old.dtype or not new.equal(old)
    ]


def expected_of(case):
    """The same on every rank."""
    right = {}
    for number, (model_of, optimizer_of, batches) in enumerate(case.models, 1):
        before = weights_of(model_of())
        steps = train(model_of, optimizer_of, batches) if case.workers else [before] * len(batches)
        for step, weights in enumerate(steps, 1):
            name = f"step {step} of model {number}" if number > 1 else f"step {step}"
            right |= changes(name, before, weights)
            before = weights
    return [right] * case.world


# --- what values do not show ---------------------------------------------------------------------


def steps_of(run, case, ranks):
    """``(rank, what was seen)`` of each step, step by step."""
    seen = [run.came(case)[rank]["watched"] for rank in ranks]
    return [(rank, own) for step in zip(*seen) for rank, own in zip(ranks, step)]


def explains(exercise, name, **sentences):
    """A property that is looked at where the weights are wrong."""

    def mark(examine):
        @exercise.holds(name, first=True, **sentences)
        def _(run, case):
            found = examine(run, case)
            return found if found and compare(run, case) else None

    return mark


def one_side(exercise, ranks, way):
    """What must hold for the server or for the workers; their bytes go "up" or "down"."""
    handles_are_waited_for(exercise, ranks)

    @exercise.holds(
        "buffers_changed",
        expects="the buffers of a rank stay as they are",
        usually="the buffers of another rank were loaded or received, or something was written into"
        " them.",
        fix="Only parameters are trained and travel: load_state_dict() loads buffers too.",
        first=True,
    )
    def _(run, case):
        for rank, seen in steps_of(run, case, ranks(case)):
            if seen["buffers"]:
                return f"on rank {rank}, {seen['name']} changed {listed(seen['buffers'])}"
        return None

    @exercise.holds(
        "too_many_bytes",
        expects=f"each trained parameter goes {way} once per step, between a worker and the server",
        usually="something travels that need not, or twice: buffers, tied weights under both of"
        " their names, weights beside gradients, float64 for float32, or gradients that all_reduce"
        " and all_gather bring to the workers.",
        fix="In each step gradients go up once and weights come down once, in their own dtype, with"
        " send, reduce, gather or broadcast. parameters() gives each one once, and no buffers.",
    )
    def _(run, case):
        parameters = [*case.models[-1][0]().parameters()]
        size = sum(p.nbytes for p in parameters if p.requires_grad)
        most = sum(p.nbytes for p in parameters) + SLACK  # frozen ones may travel
        for rank in range(1, case.world):
            calls, steps = run.calls(case, rank), run.came(case)[rank]["watched"]
            sent = sum(travelled(call)[way == "down"] for call in calls) / len(steps)
            if sent > most:
                largest = max(calls, key=lambda call: travelled(call)[way == "down"])
                came = f"worker {rank}: {sent:,.0f} bytes went {way} in a step;"
                return f"{came} the trained parameters have {size:,}", largest.place
        return None


def travelled(call):
    """The bytes that one call of a worker brought up to others, and down to it."""
    others = len(call.members) - 1
    if call.op in NO_BYTES or not others:
        return 0, 0
    own_root = call.root == call.rank
    if call.op in ("send", "recv"):
        return (call.bytes, 0) if call.op == "send" else (0, call.bytes)
    if call.op in ("broadcast", "scatter"):
        return (call.bytes, 0) if own_root else (0, call.bytes)
    if call.op in ("reduce", "gather"):
        return (0, call.bytes * others) if own_root else (call.bytes, 0)
    if call.op == "all_gather":
        return call.bytes, call.bytes * others
    if call.op == "all_to_all":
        return call.bytes, 0  # what comes back is not in the trace
    return call.bytes, call.bytes // (others + 1) if call.op == "reduce_scatter" else call.bytes
