"""Answers to ``server_step`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import threading
import torch
import torch.distributed as dist
from exercises.model_server.server_step import send_weights, set_gradients, trained, workers
from exercises.model_server.worker_step import backward, gradient, receive_weights, send_gradients


# %% a_thread_per_worker: pass
def server_step(model, optimizer):
    if not workers():
        return
    arrived = {worker: [torch.empty_like(p) for p in trained(model)] for worker in workers()}

    def receive(worker):
        for tensor in arrived[worker]:
            dist.recv(tensor, worker)

    threads = [threading.Thread(target=receive, args=[worker]) for worker in workers()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for p, *grads in zip(trained(model), *arrived.values()):
        p.grad = sum(grads) / len(grads)
    optimizer.step()
    send_weights(model)


# %% gathers_and_scatters_frozen_ones_too: pass
def worker_step(model, loss):
    model.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.gather(torch.zeros_like(p) if p.grad is None else p.grad, dst=0)
    for p in model.parameters():
        dist.scatter(p.data, src=0)


def server_step(model, optimizer):
    world = dist.get_world_size()
    if world == 1:
        return
    for p in model.parameters():
        parts = [torch.zeros_like(p) for _ in range(world)]
        dist.gather(torch.zeros_like(p), parts, dst=0)
        p.grad = torch.stack(parts[1:]).mean(0) if p.requires_grad else None
    optimizer.step()
    for p in model.parameters():
        dist.scatter(torch.empty_like(p), [p.detach()] * world, src=0)


# %% a_share_in_float32: pass
def server_step(model, optimizer):
    """A quotient of whole-number tensors."""
    if not workers():
        return
    share = 1 / torch.tensor(len(workers()))
    for p in trained(model):
        p.grad = torch.zeros_like(p)
    for worker in workers():
        for p in trained(model):
            arrived = torch.zeros_like(p)
            dist.recv(arrived, src=worker)
            p.grad += arrived * share
    optimizer.step()
    send_weights(model)


# %% meets_its_workers_at_a_barrier: wrong server_step.busy_when_alone
def worker_step(model, loss):
    dist.barrier()
    backward(model, loss)
    send_gradients(model)
    receive_weights(model)


def server_step(model, optimizer):
    dist.barrier()
    if workers():
        set_gradients(trained(model))
        optimizer.step()
        send_weights(model)


# %% steps_while_it_is_sending: wrong server_step.changed_while_sending
def server_step(model, optimizer):
    if not workers():
        return
    set_gradients(trained(model))
    handles = [dist.isend(p.data, worker) for worker in workers() for p in trained(model)]
    optimizer.step()
    for handle in handles:
        handle.wait()


# %% nobody_gets_the_weights: wrong server_step.weights_not_sent
def worker_step(model, loss):
    backward(model, loss)
    send_gradients(model)


def server_step(model, optimizer):
    if workers():
        set_gradients(trained(model))
        optimizer.step()


# %% sends_the_state_dict: wrong server_step.too_many_bytes
def worker_step(model, loss):
    backward(model, loss)
    send_gradients(model)
    names = dict(model.named_parameters())
    for name, value in model.state_dict().items():
        dist.recv(names[name].data if name in names else torch.empty_like(value), 0)


def server_step(model, optimizer):
    if workers():
        set_gradients(trained(model))
        optimizer.step()
    for worker in workers():
        for value in model.state_dict().values():
            dist.send(value, worker)


# %% sends_every_name: wrong server_step.too_many_bytes
def worker_step(model, loss):
    backward(model, loss)
    send_gradients(model)
    for _, p in model.named_parameters(remove_duplicate=False):
        dist.recv(p.data, 0)


def server_step(model, optimizer):
    if workers():
        set_gradients(trained(model))
        optimizer.step()
    for worker in workers():
        for _, p in model.named_parameters(remove_duplicate=False):
            dist.send(p.data, worker)


# %% gets_half_the_digits: wrong rounded
def worker_step(model, loss):
    backward(model, loss)
    for p in trained(model):
        dist.send(gradient(p).half(), 0)
    receive_weights(model)


def server_step(model, optimizer):
    if not workers():
        return
    for p in trained(model):
        p.grad = torch.zeros_like(p)
    for worker in workers():
        for p in trained(model):
            arrived = torch.empty_like(p, dtype=torch.float16)
            dist.recv(arrived, worker)
            p.grad += arrived / len(workers())
    optimizer.step()
    send_weights(model)
