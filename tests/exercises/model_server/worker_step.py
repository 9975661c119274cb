"""``model_server.worker_step``: backward, gradients to the server, new weights back."""

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise
from multigpu.checking.probes import spoken

from .both_sides import EXPECTS, drive_both, each_training, expected_of, one_side

worker_step = exercise(
    "model_server.worker_step",
    expects=EXPECTS,
    works_with="server_step",
    share_of=lambda case: case.workers,
)


worker_step.cases(each_training)
worker_step.expected(expected_of)


@worker_step.drive
def drive(submission, case, rank):
    return drive_both(submission, case, rank, "worker_step")


def workers(case):
    return range(1, case.world)


one_side(worker_step, workers, "up")


@worker_step.holds(
    "no_message",
    expects="gradients and weights travel through torch.distributed",
    usually="they took another road, such as a file or a store.",
    fix="Call torch.distributed on both sides.",
)
def no_message(run, case):
    for rank in workers(case):
        if not run.calls(case, rank):
            return f"worker {rank} called nothing of torch.distributed"
    return None


@worker_step.holds(
    "between_workers",
    expects="a worker sends to rank 0 and receives from rank 0",
    usually="two workers talk to each other.",
    fix="Gradients go straight to the server, and weights come straight from it.",
)
def between_workers(run, case):
    for rank in workers(case):
        for call in run.calls(case, rank):
            if call.is_message and call.peer != 0:
                return f"{spoken(call)}: both are workers", call.place
    return None


# --- what answers are made of --------------------------------------------------------------------


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def gradient(p):
    return torch.zeros_like(p) if p.grad is None else p.grad


def backward(model, loss):
    model.zero_grad()
    loss.backward()


def send_gradients(model):
    for p in trained(model):
        dist.send(gradient(p), 0)


def receive_weights(model):
    for p in trained(model):
        dist.recv(p.data, src=0)


@worker_step.right
def clears_after_sending(model, loss):
    loss.backward()
    for p in trained(model):
        dist.send(gradient(p), dst=0)
        p.grad = None
    receive_weights(model)


@worker_step.right
def all_at_once(model, loss):
    for p in model.parameters():
        p.grad = None
    loss.backward()
    handles = [dist.isend(gradient(p), 0) for p in trained(model)]
    handles += [dist.irecv(p.data, 0) for p in trained(model)]
    for handle in handles:
        handle.wait()


@worker_step.mistake(
    "old_gradients",
    "backward adds to what an earlier step left in .grad.",
    fix="Call model.zero_grad() before loss.backward(). The server begins from zeros, too.",
)
def never_clears(model, loss):
    loss.backward()
    send_gradients(model)
    receive_weights(model)


@worker_step.mistake(
    "none_cannot_be_sent",
    "the gradient of a parameter that this loss does not use is None.",
    fix="Send zeros in its place: torch.zeros_like(parameter).",
    status="crash",
)
def does_not_know_none(model, loss):
    backward(model, loss)
    for p in trained(model):
        dist.send(p.grad, 0)
    receive_weights(model)


@worker_step.mistake(
    "no_gradients",
    "the server's step uses gradients of zeros, or none.",
    fix="Call loss.backward(), send .grad, and let the server put the mean into its .grad.",
)
def forgets_backward(model, loss):
    model.zero_grad()
    send_gradients(model)
    receive_weights(model)


@worker_step.mistake(
    "weights_not_kept",
    "a worker still has its old weights: what it received went into a new tensor.",
    fix="Write what arrives into the parameters: parameter.data.copy_(arrived).",
)
def receives_into_a_new_tensor(model, loss):
    backward(model, loss)
    send_gradients(model)
    for p in trained(model):
        arrived = torch.empty_like(p)
        dist.recv(arrived, 0)
        p = arrived


@worker_step.mistake(
    "divided_twice",
    "the mean of the gradients was divided by the number of workers, {workers}, once more.",
    fix="Only one side divides, and that is the server.",
)
def divides_too(model, loss):
    backward(model, loss / (dist.get_world_size() - 1))
    send_gradients(model)
    receive_weights(model)


@worker_step.mistake(
    "both_receive",
    "the server waits for gradients, and a worker for weights: one of them sent too few messages.",
    fix="A worker sends its gradients before it receives, and the server sends to every worker.",
    status="hang",
)
def waits_for_weights_only(model, loss):
    backward(model, loss)
    receive_weights(model)


@worker_step.mistake(
    "skips_missing",
    "the worker sends nothing where this loss gives no gradient, and the server expects one.",
    fix="Send zeros in the place of a missing gradient.",
    status="mismatch",
)
def skips_none(model, loss):
    backward(model, loss)
    for p in trained(model):
        if p.grad is not None:
            dist.send(p.grad, 0)
    receive_weights(model)
