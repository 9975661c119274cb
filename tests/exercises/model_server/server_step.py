"""``model_server.server_step``: the mean of the workers' gradients, a step, new weights for all."""

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise
from multigpu.ranks.errors import counted

from .both_sides import (
    EXPECTS,
    a_case,
    drive_both,
    each_training,
    expected_of,
    explains,
    one_side,
    steps_of,
)
from .models import momentum, specimen_with_gradients

server_step = exercise(
    "model_server.server_step",
    expects=EXPECTS,
    works_with="worker_step",
    share_of=lambda case: case.workers,
)


@server_step.cases
def cases():
    yield from each_training()
    models = [(specimen_with_gradients, momentum, [[], []])]
    yield a_case("a model with gradients from before", 1, models)


@server_step.drive
def drive(submission, case, rank):
    return drive_both(submission, case, rank, "server_step")


server_step.expected(expected_of)


def server(case):
    return [0]


one_side(server_step, server, "down")


@server_step.holds(
    "busy_when_alone",
    expects="without workers server_step returns at once, and the weights do not change",
    usually="with world size 1 there is no other rank to talk to, and the optimizer stepped with"
    " old gradients or with a mean over no workers, 0 / 0.",
    fix="Return before the first call of torch.distributed and before the optimizer steps.",
    first=True,
)
def busy_when_alone(run, case):
    calls, (came, *_) = run.calls(case, 0), run.came(case)
    if case.workers:
        return None
    if calls:
        return f"{counted(len(calls), 'call')}, the first is {calls[0].via}", calls[0].place
    moved = [name for name, part in came.items() if name != "watched" and part.value.any()]
    return f"{moved[0]} is not 0" if moved else None


# what explains wrong weights


@explains(
    server_step,
    "not_one_step",
    expects="the server calls optimizer.step() once in each step",
    usually="there is one step for each worker, or the weights were changed by hand or by another"
    " optimizer, which has no momentum yet.",
    fix="When the gradients of all workers have come, write the mean into .grad and call step() of"
    " the optimizer that is given.",
)
def not_one_step(run, case):
    for _, seen in steps_of(run, case, server(case)):
        if case.workers and len(seen["stepped"]) != 1:
            return f"in {seen['name']} it was called {counted(len(seen['stepped']), 'time')}"
    return None


@explains(
    server_step,
    "weights_not_sent",
    expects="the server sends the weights to every worker after optimizer.step()",
    usually="the weights were sent too early, so the workers are a step behind, or the loop that"
    " sends them is missing or leaves workers out.",
    fix="Call optimizer.step() first, then send to every worker.",
)
def weights_not_sent(run, case):
    for _, seen in steps_of(run, case, server(case)):
        began, ended = max([seen["times"][0], *seen["stepped"]]), seen["times"][1]
        calls = [call for call in run.calls(case, 0) if began <= call.time <= ended]
        reached = {rank for call in calls for rank in receivers(call)}
        for rank in range(1, case.world):
            if rank not in reached:
                return f"in {seen['name']} nothing was sent to worker {rank} after it"
    return None


def receivers(call):
    """The ranks to which a call of the server may bring something."""
    if call.op == "send":
        return [call.peer]
    return [] if call.op in ("recv", "reduce", "gather", "barrier") else call.members


# --- what answers are made of --------------------------------------------------------------------


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def workers():
    return range(1, dist.get_world_size())


def mean(gradients):
    return sum(gradients) / len(gradients)


def set_gradients(parameters, combine=mean, senders=()):
    """Each ``.grad`` is what ``combine`` makes of the workers' gradients."""
    arrived = [[torch.empty_like(p) for _ in senders or workers()] for p in parameters]
    for i, worker in enumerate(senders or workers()):
        for gradients in arrived:
            dist.recv(gradients[i], worker)
    for p, gradients in zip(parameters, arrived):
        p.grad = combine(gradients)


def send_weights(model, receivers=()):
    for worker in receivers or workers():
        for p in trained(model):
            dist.send(p.data, worker)


def step_with(combine, model, optimizer, *, senders=(), receivers=()):
    if workers():
        set_gradients(trained(model), combine, senders)
        optimizer.step()
        send_weights(model, receivers)


@server_step.right
def all_workers_at_once(model, optimizer):
    if not workers():
        return None
    arrived = {w: [torch.empty_like(p) for p in trained(model)] for w in workers()}
    handles = [dist.irecv(g, w) for w in workers() for g in arrived[w]]
    for handle in handles:
        handle.wait()
    for p, *grads in zip(trained(model), *arrived.values()):
        p.grad = torch.stack(grads).mean(dim=0)
    optimizer.step()
    handles = [dist.isend(p.data, w) for w in workers() for p in trained(model)]
    for handle in handles:
        handle.wait()


@server_step.mistake(
    "sum_not_mean",
    "the server steps with the sum of the workers' gradients.",
    fix="Divide by the number of workers, {workers}.",
)
def sums(model, optimizer):
    step_with(sum, model, optimizer)


@server_step.mistake(
    "one_worker_only",
    "each worker's gradient overwrites the one before, and the last one remains.",
    fix="Receive into a spare tensor, and add that to .grad.",
)
def the_last_worker_wins(model, optimizer):
    step_with(lambda gradients: gradients[-1], model, optimizer)


@server_step.mistake(
    "old_gradients",
    "the server steps with the gradients of all steps so far.",
    fix="Call optimizer.zero_grad() before you add to .grad. The worker clears its gradients too.",
)
def never_clears(model, optimizer):
    if workers():
        old = [0 if p.grad is None else p.grad for p in trained(model)]
        set_gradients(trained(model))
        for p, gradient in zip(trained(model), old):
            p.grad += gradient
        optimizer.step()
        send_weights(model)


@server_step.mistake(
    "divided_by_world",
    "the sum was divided by the number of ranks, {n}, but the server has no rows.",
    fix="Divide by the number of workers, world_size - 1 = {workers}.",
)
def counts_itself(model, optimizer):
    step_with(lambda gradients: sum(gradients) / dist.get_world_size(), model, optimizer)


@server_step.mistake(
    "divided_twice",
    "the mean of the gradients was divided by the number of workers, {workers}, once more.",
    fix="Only one side divides, and only once.",
)
def divides_twice(model, optimizer):
    step_with(lambda gradients: mean(gradients) / len(gradients), model, optimizer)


@server_step.mistake(
    "no_gradients",
    "the optimizer steps without gradients: they were cleared, or the mean is not in .grad.",
    fix="Clear first, then write the mean into .grad of each parameter, then step.",
)
def throws_the_gradients_away(model, optimizer):
    step_with(lambda gradients: None, model, optimizer)


@server_step.mistake(
    "missing_left_out",
    "where some workers have no gradient, the mean was taken over the others.",
    fix="A missing gradient counts as zeros: divide by the number of all workers, {workers}.",
)
def mean_of_those_that_are_there(model, optimizer):
    def mean_of_some(gradients):
        there = [gradient for gradient in gradients if gradient.any()]
        return mean(there or gradients)

    step_with(mean_of_some, model, optimizer)


@server_step.mistake(
    "frozen_moved",
    "a frozen parameter was given a gradient of zeros, and weight decay moved it.",
    fix="Leave .grad None where requires_grad is False.",
)
def gives_frozen_ones_a_gradient_of_zeros(model, optimizer):
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if workers() else None
    step_with(mean, model, optimizer)


@server_step.breaks("weights_not_sent")
def sends_before_the_step(model, optimizer):
    if workers():
        set_gradients(trained(model))
        send_weights(model)
        optimizer.step()


@server_step.breaks("not_one_step")
def steps_by_hand(model, optimizer):
    if workers():
        set_gradients(trained(model))
        with torch.no_grad():
            for p in trained(model):
                p -= 0.1 * p.grad
        send_weights(model)


@server_step.breaks("not_one_step")
def steps_per_worker(model, optimizer):
    for worker in workers():
        set_gradients(trained(model), senders=[worker])
        optimizer.step()
    send_weights(model)


@server_step.breaks("busy_when_alone")
def steps_with_what_is_there(model, optimizer):
    if not workers():
        optimizer.step()
    step_with(mean, model, optimizer)


@server_step.mistake(
    "both_receive",
    "the server waits for gradients, and a worker for weights: one of them sent too few messages.",
    fix="The server sends weights to every worker, a worker a gradient for every parameter.",
    status="hang",
)
def sends_nothing(model, optimizer):
    if workers():
        set_gradients(trained(model))
        optimizer.step()


@server_step.mistake(
    "both_receive",
    "the server sends the weights to the first worker only, and the others wait for them.",
    fix="Send the weights to every worker: range(1, {n}).",
    status="hang",
)
def sends_to_the_first_worker_only(model, optimizer):
    step_with(mean, model, optimizer, receivers=[1])


@server_step.mistake(
    "both_send",
    "the server receives from the first worker only, and the others wait.",
    fix="Receive from every worker: range(1, {n}).",
    status="hang",
)
def asks_the_first_worker_only(model, optimizer):
    step_with(mean, model, optimizer, senders=[1])


@server_step.mistake(
    "other_order",
    "the server takes the parameters in another order than the worker, such as the optimizer's.",
    fix="Go through model.parameters() on both sides: its order is the same on all ranks.",
    status="mismatch",
)
def asks_in_the_order_of_the_optimizer(model, optimizer):
    if workers():
        held = [p for group in optimizer.param_groups for p in group["params"]]
        set_gradients([p for p in held if p.requires_grad])
        optimizer.step()
        send_weights(model)
