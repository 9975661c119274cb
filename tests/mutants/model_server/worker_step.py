"""Answers to ``worker_step``: how learners get it wrong, and ways to get it right.

Where nothing else is said they talk to the solution's ``server_step``.
"""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from harness import beside, right, wrong
from torch import nn


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def gradient(p):
    return torch.zeros_like(p) if p.grad is None else p.grad


def receive_weights(model):
    for p in trained(model):
        dist.recv(p.data, src=0)


@wrong("worker_step.earlier_model")
def keeps_the_parameters_of_its_first_model(model, loss, kept=[]):
    if not kept:
        kept += trained(model)
    model.zero_grad()
    loss.backward()
    for p in kept:
        dist.send(gradient(p), 0)
    for p in kept:
        dist.recv(p.data, src=0)


@wrong("worker_step.no_gradients")
def clears_after_backward(model, loss):
    loss.backward()
    model.zero_grad()
    for p in trained(model):
        dist.send(gradient(p), 0)
    receive_weights(model)


@wrong("deadlock", status="hang")
def puts_plain_tensors_in_their_place(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(gradient(p), 0)
    names = {id(p): name for name, p in model.named_parameters()}
    for p in trained(model):
        arrived = torch.empty_like(p)
        dist.recv(arrived, 0)
        module, _, name = names[id(p)].rpartition(".")
        delattr(model.get_submodule(module), name)
        setattr(model.get_submodule(module), name, arrived)


@wrong("worker_step.not_waited")
def throws_its_handles_away(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.isend(gradient(p), 0)
    receive_weights(model)


@wrong("worker_step.not_waited")
def does_not_wait_for_the_weights(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(gradient(p), 0)
    for p in trained(model):
        dist.irecv(p.data, 0)


@wrong("worker_step.changed_while_sending")
def clears_while_it_is_sending(model, loss):
    loss.backward()
    grads = [gradient(p) for p in trained(model)]
    handles = [dist.isend(g, 0) for g in grads]
    for g in grads:
        g.zero_()
    for handle in handles:
        handle.wait()
    receive_weights(model)


def server_of_states(model, optimizer):
    """Receives the gradients and sends the whole state."""
    workers = range(1, dist.get_world_size())
    optimizer.zero_grad()
    for p in trained(model):
        p.grad = torch.zeros_like(p)
    for worker in workers:
        for p in trained(model):
            arrived = torch.empty_like(p)
            dist.recv(arrived, worker)
            p.grad += arrived / len(workers)
    if workers:
        optimizer.step()
        dist.broadcast_object_list([model.state_dict()], 0)


@wrong("worker_step.buffers_changed")
@beside(server_step=server_of_states)
def loads_the_whole_state(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(gradient(p), 0)
    state = [None]
    dist.broadcast_object_list(state, 0)
    model.load_state_dict(state[0])


@wrong("server_step.buffers_travel")
@beside(server_step=server_of_states)
def gets_the_whole_state_and_keeps_the_parameters(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(gradient(p), 0)
    state = [None]
    dist.broadcast_object_list(state, 0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(state[0][name])


def server_of_names(model, optimizer):
    """Every parameter under each of its names."""
    workers = range(1, dist.get_world_size())
    if not workers:
        return
    for p in trained(model):
        p.grad = torch.zeros_like(p)
    for worker in workers:
        seen = set()
        for _, p in model.named_parameters(remove_duplicate=False):
            if p.requires_grad:
                arrived = torch.empty_like(p)
                dist.recv(arrived, worker)
                if id(p) not in seen:
                    p.grad += arrived / len(workers)
                seen.add(id(p))
    optimizer.step()
    for worker in workers:
        for p in trained(model):
            dist.send(p.data, worker)


@wrong("worker_step.tied_twice")
@beside(server_step=server_of_names)
def sends_every_name(model, loss):
    model.zero_grad()
    loss.backward()
    for _, p in model.named_parameters(remove_duplicate=False):
        if p.requires_grad:
            dist.send(gradient(p), 0)
    receive_weights(model)


def server_of_pairs(model, optimizer):
    workers = range(1, dist.get_world_size())
    if not workers:
        return
    for p in trained(model):
        p.grad = torch.zeros_like(p)
        for worker in workers:
            arrived = torch.empty_like(p)
            dist.recv(arrived, worker)
            dist.recv(torch.empty_like(p), worker)
            p.grad += arrived / len(workers)
    optimizer.step()
    for p in trained(model):
        for worker in workers:
            dist.send(p.data, worker)


@wrong("worker_step.travels_twice")
@beside(server_step=server_of_pairs)
def sends_gradients_and_weights(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(gradient(p), 0)
        dist.send(p.data, 0)
    receive_weights(model)


def server_at_the_end_of_a_chain(model, optimizer):
    workers = dist.get_world_size() - 1
    if not workers:
        return
    for p in trained(model):
        p.grad = torch.zeros_like(p)
        dist.recv(p.grad, 1)
        p.grad /= workers
    optimizer.step()
    for p in trained(model):
        for worker in range(1, workers + 1):
            dist.send(p.data, worker)


@wrong("worker_step.between_workers")
@beside(server_step=server_at_the_end_of_a_chain)
def adds_up_along_the_workers(model, loss):
    model.zero_grad()
    loss.backward()
    rank = dist.get_rank()
    for p in trained(model):
        total = gradient(p).clone()
        if rank < dist.get_world_size() - 1:
            arrived = torch.empty_like(p)
            dist.recv(arrived, rank + 1)
            total += arrived
        dist.send(total, rank - 1)
    receive_weights(model)


def server_that_all_reduces(model, optimizer):
    workers = dist.get_world_size() - 1
    if not workers:
        return
    for p in trained(model):
        p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= workers
    optimizer.step()
    for p in trained(model):
        dist.broadcast(p.data, 0)


@wrong("server_step.gradients_sent_down")
@beside(server_step=server_that_all_reduces)
def all_reduces(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        g = gradient(p)
        dist.all_reduce(g)
    for p in trained(model):
        dist.broadcast(p.data, 0)


def server_with_a_file(model, optimizer):
    import os
    import time

    workers = range(1, dist.get_world_size())
    if not workers:
        return
    server_step.steps = getattr(server_step, "steps", 0) + 1
    for p in trained(model):
        p.grad = torch.zeros_like(p)
    folder = os.environ.get("TMPDIR", "/tmp")
    run = os.getppid()
    for worker in workers:
        path = f"{folder}/grads {run} {worker} {server_step.steps}"
        while not os.path.exists(path):
            time.sleep(0.001)
        for p, g in zip(trained(model), torch.load(path)):
            p.grad += g / len(workers)
        os.remove(path)
    optimizer.step()
    for worker in workers:
        torch.save([p.data for p in trained(model)], f"{folder}/w {run} {worker}.part")
        os.rename(f"{folder}/w {run} {worker}.part", f"{folder}/w {run} {worker}")


@wrong("worker_step.no_message")
@beside(server_step=server_with_a_file)
def goes_through_files(model, loss):
    import os
    import time

    model.zero_grad()
    loss.backward()
    worker_step.steps = getattr(worker_step, "steps", 0) + 1
    folder = os.environ.get("TMPDIR", "/tmp")
    run, rank = os.getppid(), dist.get_rank()
    path = f"{folder}/grads {run} {rank} {worker_step.steps}"
    torch.save([gradient(p) for p in trained(model)], path + ".part")
    os.rename(path + ".part", path)
    while not os.path.exists(f"{folder}/w {run} {rank}"):
        time.sleep(0.001)
    for p, w in zip(trained(model), torch.load(f"{folder}/w {run} {rank}")):
        p.data.copy_(w)
    os.remove(f"{folder}/w {run} {rank}")


@right
def with_autograd_grad(model, loss):
    found = torch.autograd.grad(loss, trained(model), allow_unused=True)
    for p, g in zip(trained(model), found):
        dist.send(torch.zeros_like(p) if g is None else g.contiguous(), 0)
    with torch.no_grad():
        for p in trained(model):
            arrived = torch.zeros(p.shape, dtype=p.dtype)
            dist.recv(arrived, 0)
            p.copy_(arrived)


def flat_server(model, optimizer):
    """One message per worker, all parameters in a row."""
    workers = dist.get_world_size() - 1
    if workers == 0:
        return
    parameters = list(model.parameters())
    size = sum(p.numel() for p in parameters)
    total = torch.zeros(size, dtype=parameters[0].dtype)
    arrived = torch.empty_like(total)
    for _ in range(workers):
        dist.recv(arrived)
        total += arrived
    total /= workers
    for p, g in zip(parameters, total.split([p.numel() for p in parameters])):
        p.grad = g.view_as(p) if p.requires_grad else None
    optimizer.step()
    weights = nn.utils.parameters_to_vector(parameters).detach()
    for worker in range(1, workers + 1):
        dist.send(weights, worker)


@right
@beside(server_step=flat_server)
def in_one_message(model, loss):
    model.zero_grad()
    loss.backward()
    parameters = list(model.parameters())
    flat = torch.cat([gradient(p).reshape(-1) for p in parameters])
    dist.send(flat, 0)
    dist.recv(flat, 0)
    nn.utils.vector_to_parameters(flat, parameters)


def reducing_server(model, optimizer):
    if dist.get_world_size() == 1:
        return
    for p in trained(model):
        p.grad = torch.zeros_like(p)
        dist.reduce(p.grad, dst=0)
        p.grad.div_(dist.get_world_size() - 1)
    optimizer.step()
    for p in trained(model):
        dist.broadcast(p.data, src=0)


@right
@beside(server_step=reducing_server)
def with_reduce_and_broadcast(model, loss):
    model.zero_grad(set_to_none=False)
    loss.backward()
    for p in trained(model):
        dist.reduce(gradient(p).clone(), dst=0)
    for p in trained(model):
        dist.broadcast(p.data, src=0)


def gathering_server(model, optimizer):
    size = dist.get_world_size()
    if size == 1:
        return
    everyone = [None] * size
    dist.gather_object(None, everyone, dst=0)
    for name, p in model.named_parameters():
        if p.requires_grad:
            sent = [grads[name] for grads in everyone[1:] if name in grads]
            p.grad = sum(sent, torch.zeros_like(p)) / (size - 1)
    optimizer.step()
    dist.broadcast_object_list([{n: p.detach() for n, p in model.named_parameters()}], src=0)


@right
@beside(server_step=gathering_server)
def with_objects(model, loss):
    """Only the gradients that are there, in a dict."""
    model.zero_grad()
    loss.backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    dist.gather_object(grads, dst=0)
    weights = [None]
    dist.broadcast_object_list(weights, src=0)
    model.load_state_dict(weights[0], strict=False)


def server_in_pieces(model, optimizer):
    """First a flag for each parameter, then only the gradients that are there."""
    workers = range(1, dist.get_world_size())
    if not workers:
        return
    optimizer.zero_grad(set_to_none=True)
    for worker in workers:
        flags = torch.zeros(len(trained(model)), dtype=torch.bool)
        dist.recv(flags, worker)
        for p, flag in zip(trained(model), flags):
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            if flag:
                arrived = torch.empty_like(p)
                dist.recv(arrived, worker)
                p.grad.add_(arrived, alpha=1 / len(workers))
    optimizer.step()
    for p in trained(model):
        handles = [dist.isend(p.data, worker) for worker in workers]
        for handle in handles:
            handle.wait()


@right
@beside(server_step=server_in_pieces)
def with_flags(model, loss):
    model.zero_grad()
    loss.backward()
    flags = torch.tensor([p.grad is not None for p in trained(model)])
    dist.send(flags, 0)
    for p in trained(model):
        if p.grad is not None:
            dist.send(p.grad, 0)
    receive_weights(model)


def server_of_lists(model, optimizer):
    """Objects from each worker, and objects to all of them."""
    size = dist.get_world_size()
    if size == 1:
        return
    sums = [torch.zeros_like(p) for p in model.parameters()]
    for worker in range(1, size):
        arrived = [None]
        dist.recv_object_list(arrived, src=worker)
        for total, gradient in zip(sums, arrived[0]):
            if gradient is not None:
                total += gradient
    for p, total in zip(model.parameters(), sums):
        p.grad = total / (size - 1) if p.requires_grad else None
    optimizer.step()
    weights = [p.detach() for p in model.parameters()]
    dist.scatter_object_list([None], [weights] * size, src=0)


@right
@beside(server_step=server_of_lists)
def with_lists_of_objects(model, loss):
    model.zero_grad()
    loss.backward()
    dist.send_object_list([[p.grad for p in model.parameters()]], dst=0)
    weights = [None]
    dist.scatter_object_list(weights, None, src=0)
    for p, w in zip(model.parameters(), weights[0]):
        p.data[...] = w


def server_with_groups(model, optimizer):
    workers = range(1, dist.get_world_size())
    if not workers:
        return
    groups = [dist.new_group([0, worker]) for worker in workers]
    for p in trained(model):
        p.grad = torch.zeros_like(p)
        for worker, group in zip(workers, groups):
            arrived = torch.empty_like(p)
            dist.broadcast(arrived, src=worker, group=group)
            p.grad += arrived / len(workers)
    optimizer.step()
    for p in trained(model):
        for group in groups:
            dist.broadcast(p.data, src=0, group=group)


@right
@beside(server_step=server_with_groups)
def in_a_group_of_two(model, loss):
    workers = range(1, dist.get_world_size())
    group = [dist.new_group([0, worker]) for worker in workers][dist.get_rank() - 1]
    loss.backward()
    for p in trained(model):
        dist.broadcast(gradient(p), src=dist.get_rank(), group=group)
        p.grad = None
    for p in trained(model):
        dist.broadcast(p.data, src=0, group=group)


def server_of_float32(model, optimizer):
    workers = range(1, dist.get_world_size())
    if not workers:
        return
    optimizer.zero_grad()
    for worker in workers:
        for p in trained(model):
            arrived = torch.empty_like(p, dtype=torch.float32)
            dist.recv(arrived, worker)
            p.grad = gradient(p) + arrived / len(workers)
    optimizer.step()
    for worker in workers:
        for p in trained(model):
            dist.send(p.data, worker)


@wrong("rounded")
@beside(server_step=server_of_float32)
def sends_gradients_as_float32(model, loss):
    model.zero_grad()
    loss.backward()
    for p in trained(model):
        dist.send(gradient(p).float(), 0)
    receive_weights(model)
