"""``model_server.server_step``: the mean of the workers' gradients, a step, new weights for all."""

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise
from multigpu.checking.verdicts import count

from .both_sides import (
    EXPECTS,
    SLACK,
    a_case,
    drive_both,
    each_training,
    expected_of,
    explains,
    one_side,
    steps_of,
    too_many_bytes,
    travelled,
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


def brings_gradients_to_all(size, extra, calls):
    return any(
        call.op in ("all_reduce", "all_gather") and travelled(call)[1] > SLACK for call in calls
    )


too_many_bytes(
    *(server_step, "gradients_sent_down", "down", brings_gradients_to_all),
    usually="all_reduce and all_gather bring the gradients to workers, which have no use for them.",
    fix="reduce, gather and send bring them to the server only.",
)
one_side(server_step, server, "down")


@server_step.holds(
    "talks_when_alone",
    expects="without workers server_step returns at once",
    usually="with world size 1 there is no other rank to talk to.",
    fix="Return before the first call of torch.distributed.",
    first=True,
)
def talks_when_alone(run, case):
    calls = run.calls(case, 0)
    if case.workers or not calls:
        return None
    return f"{count(len(calls), 'call')}, the first is {calls[0].via}", calls[0].place


@server_step.holds(
    "moves_when_alone",
    expects="without workers server_step returns at once, and the weights do not change",
    usually="the optimizer stepped with old gradients, or with a mean over no workers, 0 / 0.",
    fix="Return before the optimizer steps.",
    first=True,
)
def moves_when_alone(run, case):
    (came, *_) = run.came(case)
    moved = [name for name, part in came.items() if name != "watched" and part.value.any()]
    return None if case.workers or not moved else f"{moved[0]} is not 0"


# what explains wrong weights


@explains(
    server_step,
    "optimizer_not_used",
    expects="the server calls optimizer.step() once in each step",
    usually="the weights were changed by hand or by another optimizer, which has no momentum yet.",
    fix="Write the mean into .grad and call step() of the optimizer that is given.",
)
def optimizer_not_used(run, case):
    for _, seen in steps_of(run, case, server(case)):
        if case.workers and not seen["stepped"]:
            return f"in {seen['name']} it was not called"
    return None


@explains(
    server_step,
    "several_steps",
    expects="the server calls optimizer.step() once in each step",
    usually="there is one step for each worker.",
    fix="Step once, when the gradients of all workers have come.",
)
def several_steps(run, case):
    for _, seen in steps_of(run, case, server(case)):
        if len(seen["stepped"]) > 1:
            return f"in {seen['name']} it was called {len(seen['stepped'])} times"
    return None


@explains(
    server_step,
    "weights_not_sent",
    expects="the server sends the new weights to every worker in each step",
    usually="the loop that sends them is missing or leaves workers out.",
    fix="Send the weights to every worker after optimizer.step().",
)
def weights_not_sent(run, case):
    for _, seen in steps_of(run, case, server(case)):
        reached = [rank for call in calls_in(run, case, seen) for rank in receivers(call)]
        for rank in range(1, case.world):
            if rank not in reached:
                return f"in {seen['name']} nothing was sent to worker {rank}"
    return None


@explains(
    server_step,
    "weights_sent_before_step",
    expects="the server sends the weights after optimizer.step()",
    usually="the weights were sent too early, so the workers are a step behind.",
    fix="Call optimizer.step() first, then send.",
)
def weights_sent_before_step(run, case):
    for _, seen in steps_of(run, case, server(case)):
        calls = calls_in(run, case, seen)
        for rank in range(1, case.world):
            own = [call for call in calls if rank in receivers(call)]
            if own and seen["stepped"] and own[-1].time < seen["stepped"][-1]:
                came = f"in {seen['name']} all that went to worker {rank} was sent before"
                return f"{came} optimizer.step()", own[-1].place
    return None


def calls_in(run, case, seen):
    """What the server called in one step."""
    began, ended = seen["times"]
    return [call for call in run.calls(case, 0) if began <= call.time <= ended]


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


def received(model):
    """For each parameter the gradients of all workers."""
    arrived = [[torch.empty_like(p) for _ in workers()] for p in trained(model)]
    for worker in workers():
        for gradients in arrived:
            dist.recv(gradients[worker - 1], worker)
    return arrived


def mean(gradients):
    return sum(gradients) / len(gradients)


def set_gradients(model, combine=mean):
    """Each ``.grad`` is what ``combine`` makes of the workers' gradients."""
    for p, gradients in zip(trained(model), received(model)):
        p.grad = combine(gradients)


def kept(p):
    return 0 if p.grad is None else p.grad


def send_weights(model):
    for worker in workers():
        for p in trained(model):
            dist.send(p.data, worker)


def step_and_send(model, optimizer):
    optimizer.step()
    send_weights(model)


def step_with(combine, model, optimizer):
    if workers():
        set_gradients(model, combine)
        step_and_send(model, optimizer)


# --- right answers -------------------------------------------------------------------------------


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


# --- mistakes ------------------------------------------------------------------------------------


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
    "one_worker_only",
    "each worker's gradient overwrites the one before, and the last one was divided by {workers}.",
    fix="Receive into a spare tensor, and add that to .grad.",
)
def the_last_worker_wins_and_is_divided(model, optimizer):
    step_with(lambda gradients: gradients[-1] / len(gradients), model, optimizer)


@server_step.mistake(
    "old_gradients",
    "the server steps with the gradients of all steps so far.",
    fix="Call optimizer.zero_grad() before you add to .grad. The worker clears its gradients too.",
)
def never_clears(model, optimizer):
    if not workers():
        return
    for p, gradients in zip(trained(model), received(model)):
        p.grad = mean(gradients) + kept(p)
    step_and_send(model, optimizer)


@server_step.mistake(
    "old_gradients",
    "the gradients of this step are added to what is in .grad, and all of it is divided.",
    fix="Call optimizer.zero_grad() before you add to .grad.",
)
def clears_nothing_and_divides_all(model, optimizer):
    if not workers():
        return
    for p, gradients in zip(trained(model), received(model)):
        p.grad = (sum(gradients) + kept(p)) / len(gradients)
    step_and_send(model, optimizer)


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
def steps_with_gradients_that_it_has_cleared(model, optimizer):
    if workers():
        set_gradients(model)
        optimizer.zero_grad()
        step_and_send(model, optimizer)


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
    if not workers():
        return
    set_gradients(model)
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    step_and_send(model, optimizer)


@server_step.breaks("weights_sent_before_step")
def sends_before_the_step(model, optimizer):
    if workers():
        set_gradients(model)
        send_weights(model)
        optimizer.step()


@server_step.breaks("optimizer_not_used")
def steps_by_hand(model, optimizer):
    if not workers():
        return
    set_gradients(model)
    with torch.no_grad():
        for p in trained(model):
            p -= 0.1 * p.grad
    send_weights(model)


@server_step.breaks("several_steps")
def steps_per_worker(model, optimizer):
    if not workers():
        return
    for worker in workers():
        for p in trained(model):
            p.grad = torch.empty_like(p)
            dist.recv(p.grad, worker)
        optimizer.step()
    send_weights(model)


@server_step.breaks("moves_when_alone")
def steps_with_what_is_there(model, optimizer):
    if not workers():
        optimizer.step()
        return
    set_gradients(model)
    step_and_send(model, optimizer)


@server_step.mistake(
    "both_receive",
    "the server waits for gradients, and a worker for weights: one of them sent too few messages.",
    fix="The server sends weights to every worker, a worker a gradient for every parameter.",
    status="hang",
)
def sends_nothing(model, optimizer):
    if workers():
        set_gradients(model)
        optimizer.step()


@server_step.mistake(
    "both_receive",
    "the server sends the weights to the first worker only, and the others wait for them.",
    fix="Send the weights to every worker: range(1, {n}).",
    status="hang",
)
def sends_to_the_first_worker_only(model, optimizer):
    if workers():
        set_gradients(model)
        optimizer.step()
        for p in trained(model):
            dist.send(p.data, 1)


@server_step.mistake(
    "both_send",
    "the server receives from the first worker only, and the others wait.",
    fix="Receive from every worker: range(1, {n}).",
    status="hang",
)
def asks_the_first_worker_only(model, optimizer):
    if not workers():
        return
    for p in trained(model):
        p.grad = torch.empty_like(p)
        dist.recv(p.grad, 1)
    step_and_send(model, optimizer)


@server_step.mistake(
    "other_order",
    "the server takes the parameters in another order than the worker, such as the optimizer's.",
    fix="Go through model.parameters() on both sides: its order is the same on all ranks.",
    status="mismatch",
)
def asks_in_the_order_of_the_optimizer(model, optimizer):
    if not workers():
        return
    held = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    for p in held:
        p.grad = torch.zeros_like(p)
    for worker in workers():
        for p in held:
            arrived = torch.empty_like(p)
            dist.recv(arrived, worker)
            p.grad += arrived / len(workers())
    step_and_send(model, optimizer)
