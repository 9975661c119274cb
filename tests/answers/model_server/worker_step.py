"""Answers to ``worker_step`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import pickle
import torch
import torch.distributed as dist
from torch import nn
from exercises.model_server.server_step import send_weights, set_gradients, workers
from exercises.model_server.worker_step import backward, gradient, receive_weights
from exercises.model_server.worker_step import send_gradients, trained


# %% with_autograd_grad: pass
def worker_step(model, loss):
    found = torch.autograd.grad(loss, trained(model), allow_unused=True)
    for p, g in zip(trained(model), found):
        dist.send(torch.zeros_like(p) if g is None else g.contiguous(), 0)
    with torch.no_grad():
        for p in trained(model):
            arrived = torch.zeros(p.shape, dtype=p.dtype)
            dist.recv(arrived, 0)
            p.copy_(arrived)


# %% in_one_message: pass
def server_step(model, optimizer):
    """From any worker that is ready."""
    if not workers():
        return
    parameters = list(model.parameters())
    total = torch.zeros_like(nn.utils.parameters_to_vector(parameters).detach())
    for _ in workers():
        arrived = torch.empty_like(total)
        dist.recv(arrived)
        total += arrived / len(workers())
    for p, g in zip(parameters, total.split([p.numel() for p in parameters])):
        p.grad = g.view_as(p) if p.requires_grad else None
    optimizer.step()
    weights = nn.utils.parameters_to_vector(parameters).detach()
    for worker in workers():
        dist.send(weights, worker)


def worker_step(model, loss):
    backward(model, loss)
    parameters = list(model.parameters())
    flat = torch.cat([gradient(p).reshape(-1) for p in parameters])
    dist.send(flat, 0)
    dist.recv(flat, 0)
    nn.utils.vector_to_parameters(flat, parameters)


# %% with_reduce_and_broadcast: pass
def server_step(model, optimizer):
    if not workers():
        return
    for p in trained(model):
        p.grad = torch.zeros_like(p)
        dist.reduce(p.grad, dst=0)
        p.grad /= len(workers())
    optimizer.step()
    for p in trained(model):
        dist.broadcast(p.data, src=0)


def worker_step(model, loss):
    backward(model, loss)
    for p in trained(model):
        dist.reduce(gradient(p).clone(), dst=0)
    for p in trained(model):
        dist.broadcast(p.data, src=0)


# %% with_objects: pass
def server_step(model, optimizer):
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


def worker_step(model, loss):
    """Only the gradients that are there, in a dict."""
    backward(model, loss)
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    dist.gather_object(grads, dst=0)
    weights = [None]
    dist.broadcast_object_list(weights, src=0)
    model.load_state_dict(weights[0], strict=False)


# %% keeps_the_parameters_of_its_first_model: wrong wrong_values
def worker_step(model, loss, kept=[]):
    if not kept:
        kept += trained(model)
    backward(model, loss)
    for p in kept:
        dist.send(gradient(p), 0)
    for p in kept:
        dist.recv(p.data, src=0)


# %% throws_its_handles_away: wrong worker_step.not_waited
def worker_step(model, loss):
    backward(model, loss)
    for p in trained(model):
        dist.isend(gradient(p), 0)
    receive_weights(model)


# %% loads_the_whole_state: wrong worker_step.buffers_changed
def server_step(model, optimizer):
    if workers():
        set_gradients(trained(model))
        optimizer.step()
        dist.broadcast_object_list([model.state_dict()], 0)


def worker_step(model, loss):
    backward(model, loss)
    send_gradients(model)
    state = [None]
    dist.broadcast_object_list(state, 0)
    model.load_state_dict(state[0])


# %% sends_gradients_and_weights: wrong worker_step.too_many_bytes
def server_step(model, optimizer):
    if not workers():
        return
    for p in trained(model):
        p.grad = torch.zeros_like(p)
        for worker in workers():
            arrived = torch.empty_like(p)
            dist.recv(arrived, worker)
            dist.recv(torch.empty_like(p), worker)
            p.grad += arrived / len(workers())
    optimizer.step()
    send_weights(model)


def worker_step(model, loss):
    backward(model, loss)
    for p in trained(model):
        dist.send(gradient(p), 0)
        dist.send(p.data, 0)
    receive_weights(model)


# %% adds_up_along_the_workers: wrong worker_step.between_workers
def server_step(model, optimizer):
    if not workers():
        return
    for p in trained(model):
        p.grad = torch.zeros_like(p)
        dist.recv(p.grad, 1)
        p.grad /= len(workers())
    optimizer.step()
    send_weights(model)


def worker_step(model, loss):
    backward(model, loss)
    rank = dist.get_rank()
    for p in trained(model):
        total = gradient(p).clone()
        if rank < dist.get_world_size() - 1:
            arrived = torch.empty_like(p)
            dist.recv(arrived, rank + 1)
            total += arrived
        dist.send(total, rank - 1)
    receive_weights(model)


# %% all_reduces: wrong server_step.too_many_bytes
def server_step(model, optimizer):
    if not workers():
        return
    for p in trained(model):
        p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= len(workers())
    optimizer.step()
    for p in trained(model):
        dist.broadcast(p.data, 0)


def worker_step(model, loss):
    backward(model, loss)
    for p in trained(model):
        dist.all_reduce(gradient(p))
    for p in trained(model):
        dist.broadcast(p.data, 0)


# %% goes_through_the_store: wrong worker_step.no_message
def put(key, tensors):
    dist.distributed_c10d._get_default_store().set(key, pickle.dumps(tensors))


def take(key):
    return pickle.loads(dist.distributed_c10d._get_default_store().get(key))


def server_step(model, optimizer):
    server_step.steps = step = getattr(server_step, "steps", 0) + 1
    for p in trained(model):
        p.grad = torch.zeros_like(p) if workers() else None
    for worker in workers():
        for p, g in zip(trained(model), take(f"gradients {step} {worker}")):
            p.grad += g / len(workers())
    if workers():
        optimizer.step()
        put(f"weights {step}", [p.data for p in trained(model)])


def worker_step(model, loss):
    worker_step.steps = step = getattr(worker_step, "steps", 0) + 1
    backward(model, loss)
    put(f"gradients {step} {dist.get_rank()}", [gradient(p) for p in trained(model)])
    for p, weights in zip(trained(model), take(f"weights {step}")):
        p.data.copy_(weights)


# %% sends_the_weights_where_there_is_no_gradient: wrong wrong_values
def worker_step(model, loss):
    backward(model, loss)
    for p in trained(model):
        dist.send(p.data if p.grad is None else p.grad, 0)
    receive_weights(model)
