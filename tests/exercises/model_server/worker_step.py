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


@worker_step.cases
def cases():
    return each_training()


@worker_step.drive
def drive(submission, case, rank):
    return drive_both(submission, case, rank, "worker_step")


@worker_step.expected
def expected(case):
    return expected_of(case)


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
    fix="The gradients of a worker go straight to the server, and the weights come straight from"
    " it.",
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


def send_gradients(model):
    for p in trained(model):
        dist.send(gradient(p), 0)


def receive_weights(model):
    for p in trained(model):
        dist.recv(p.data, src=0)


# --- right answers -------------------------------------------------------------------------------


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


# --- mistakes ------------------------------------------------------------------------------------


@worker_step.mistake(
    "old_gradients",
    "the server steps with the gradients of all steps so far: backward adds to what an earlier step"
    " left in .grad.",
    fix="Call model.zero_grad() before loss.backward(). The server too must begin each step from"
    " zeros.",
)
def never_clears(model, loss):
    loss.backward()
    send_gradients(model)
    receive_weights(model)


@worker_step.mistake(
    "old_where_missing",
    "a parameter that this loss does not use was sent with the gradient of an earlier step.",
    fix="Clear all gradients before backward: a missing one counts as zeros.",
)
def clears_only_what_this_loss_uses(model, loss):
    found = torch.autograd.grad(loss, trained(model), allow_unused=True)
    for p, g in zip(trained(model), found):
        if g is not None:
            p.grad = g
        dist.send(gradient(p), 0)
    receive_weights(model)


@worker_step.mistake(
    "none_cannot_be_sent",
    "the gradient of a parameter that this loss does not use is None.",
    fix="Send zeros in its place: torch.zeros_like(parameter).",
    status="crash",
)
def does_not_know_none(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(p.grad, 0)
    receive_weights(model)


@worker_step.mistake(
    "no_gradients",
    "the server's step uses gradients of zeros, or none.",
    fix="Call loss.backward(), and do not clear .grad between backward and sending. The server puts"
    " the mean into .grad before optimizer.step().",
)
def forgets_backward(model, loss):
    model.zero_grad()
    send_gradients(model)
    receive_weights(model)


@worker_step.mistake(
    "weights_sent",
    "the server's step uses the weights as if they were gradients.",
    fix="Send parameter.grad, and not the parameter.",
)
def sends_the_parameters(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(p.data, 0)
    receive_weights(model)


@worker_step.mistake(
    "weights_not_kept",
    "a worker still has its old weights: what it received went into a new tensor, or the server"
    " sent copies that it made before its step.",
    fix="Write what arrives into the parameters: parameter.data.copy_(arrived).",
)
def receives_into_a_new_tensor(model, loss):
    model.zero_grad()
    loss.backward()
    send_gradients(model)
    for p in trained(model):
        arrived = torch.empty_like(p)
        dist.recv(arrived, 0)
        p = arrived


@worker_step.mistake(
    "weights_left_out",
    "a worker keeps the new weights only of parameters with two dimensions or more.",
    fix="All trained parameters come back, whatever their shape.",
)
def keeps_only_weights_with_dimensions(model, loss):
    model.zero_grad()
    loss.backward()
    send_gradients(model)
    for p in trained(model):
        arrived = torch.empty_like(p)
        dist.recv(arrived, 0)
        if p.ndim > 1:
            p.data.copy_(arrived)


@worker_step.mistake(
    "added",
    "a worker adds the new weights to its old ones.",
    fix="The new weights replace the old ones: parameter.data.copy_(arrived).",
)
def adds_the_new_weights(model, loss):
    model.zero_grad()
    loss.backward()
    send_gradients(model)
    for p in trained(model):
        arrived = torch.empty_like(p)
        dist.recv(arrived, 0)
        p.data += arrived


@worker_step.mistake(
    "own_step",
    "a worker does a step of its own after it has received the new weights.",
    fix="A worker has no optimizer: it takes the weights as they come.",
)
def steps_by_itself_too(model, loss):
    model.zero_grad()
    loss.backward()
    send_gradients(model)
    receive_weights(model)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


@worker_step.mistake(
    "averaged_weights",
    "a worker takes the mean of its old weights and the new ones.",
    fix="The new weights replace the old ones: parameter.data.copy_(arrived).",
)
def takes_the_mean_of_both(model, loss):
    model.zero_grad()
    loss.backward()
    send_gradients(model)
    for p in trained(model):
        arrived = torch.empty_like(p)
        dist.recv(arrived, 0)
        p.data.add_(arrived).div_(2)


@worker_step.mistake(
    "divided_twice",
    "the mean of the gradients was divided by the number of workers, {workers}, once more.",
    fix="Only one side divides, and that is the server.",
)
def divides_too(model, loss):
    model.zero_grad()
    (loss / (dist.get_world_size() - 1)).backward()
    send_gradients(model)
    receive_weights(model)


@worker_step.mistake(
    "rounded",
    "a worker has the weights of the server, but they went through float32.",
    fix="Send and keep them as they are.",
)
def keeps_weights_as_float32(model, loss):
    model.zero_grad()
    loss.backward()
    send_gradients(model)
    for p in trained(model):
        arrived = torch.empty_like(p)
        dist.recv(arrived, 0)
        p.data.copy_(arrived.float())


@worker_step.mistake(
    "both_receive",
    "the server waits for gradients while a worker waits for weights: one of them expects more"
    " messages than the other sends.",
    fix="In each step a worker sends its gradients before it receives the weights, and the server"
    " sends the weights to every worker.",
    status="hang",
)
def waits_for_weights_only(model, loss):
    model.zero_grad()
    loss.backward()
    receive_weights(model)


@worker_step.mistake(
    "both_send",
    "the server sends its weights, and the worker sends gradients of the next step already.",
    fix="A worker receives the new weights before its step ends.",
    status="hang",
)
def never_fetches_the_weights(model, loss):
    model.zero_grad()
    loss.backward()
    send_gradients(model)


@worker_step.mistake(
    "other_order",
    "the worker goes through the parameters in another order than the server.",
    fix="Go through model.parameters() on both sides: its order is the same on all ranks.",
    status="mismatch",
)
def sends_in_the_other_order(model, loss):
    model.zero_grad()
    loss.backward()
    for p in reversed(trained(model)):
        dist.send(gradient(p), 0)
    receive_weights(model)


@worker_step.mistake(
    "tied_under_both_names",
    "the worker sends a tied parameter under each of its names, and the server receives it once.",
    fix="model.parameters() gives a tied parameter once.",
    status="mismatch",
)
def sends_tied_weights_under_both_names(model, loss):
    model.zero_grad()
    loss.backward()
    for _, p in model.named_parameters(remove_duplicate=False):
        if p.requires_grad:
            dist.send(gradient(p), 0)
    receive_weights(model)


@worker_step.mistake(
    "skips_missing",
    "the worker sends nothing for a parameter that this loss does not use, and the server expects"
    " a gradient for each.",
    fix="Send zeros in the place of a missing gradient.",
    status="mismatch",
)
def skips_none(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        if p.grad is not None:
            dist.send(p.grad, 0)
    receive_weights(model)
