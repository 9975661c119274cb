"""Answers to ``server_step`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import threading
import torch
import torch.distributed as dist


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def workers():
    return range(1, dist.get_world_size())


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in trained(model)]


def send(tensors, rank):
    for tensor in tensors:
        dist.send(tensor, rank)


def receive(tensors, rank):
    for tensor in tensors:
        dist.recv(tensor, rank)


def set_mean(model):
    arrived = {worker: [torch.empty_like(p) for p in trained(model)] for worker in workers()}
    for worker in workers():
        receive(arrived[worker], worker)
    for p, *grads in zip(trained(model), *arrived.values()):
        p.grad = sum(grads) / len(grads)


def send_weights(model):
    for worker in workers():
        send([p.data for p in trained(model)], worker)


# %% a_thread_per_worker: pass
def server_step(model, optimizer):
    if not workers():
        return
    arrived = {worker: [torch.empty_like(p) for p in trained(model)] for worker in workers()}
    threads = [threading.Thread(target=receive, args=(arrived[w], w)) for w in workers()]
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


# %% meets_its_workers_at_a_barrier: wrong server_step.talks_when_alone
def worker_step(model, loss):
    dist.barrier()
    send(gradients(model, loss), 0)
    receive([p.data for p in trained(model)], 0)


def server_step(model, optimizer):
    dist.barrier()
    if workers():
        set_mean(model)
        optimizer.step()
        send_weights(model)


# %% steps_while_it_is_sending: wrong server_step.changed_while_sending
def server_step(model, optimizer):
    if not workers():
        return
    set_mean(model)
    handles = [dist.isend(p.data, worker) for worker in workers() for p in trained(model)]
    optimizer.step()
    for handle in handles:
        handle.wait()


# %% nobody_gets_the_weights: wrong server_step.weights_not_sent
def worker_step(model, loss):
    send(gradients(model, loss), 0)


def server_step(model, optimizer):
    if workers():
        set_mean(model)
        optimizer.step()


# %% sends_the_state_dict: wrong server_step.buffers_travel
def worker_step(model, loss):
    send(gradients(model, loss), 0)
    names = dict(model.named_parameters())
    for name, value in model.state_dict().items():
        dist.recv(names[name].data if name in names else torch.empty_like(value), 0)


def server_step(model, optimizer):
    if workers():
        set_mean(model)
        optimizer.step()
    for worker in workers():
        send(model.state_dict().values(), worker)


# %% sends_every_name: wrong server_step.tied_twice
def worker_step(model, loss):
    send(gradients(model, loss), 0)
    receive([p.data for _, p in model.named_parameters(remove_duplicate=False)], 0)


def server_step(model, optimizer):
    if workers():
        set_mean(model)
        optimizer.step()
    for worker in workers():
        send([p.data for _, p in model.named_parameters(remove_duplicate=False)], worker)


# %% gets_half_the_digits: wrong rounded
def worker_step(model, loss):
    send([gradient.half() for gradient in gradients(model, loss)], 0)
    receive([p.data for p in trained(model)], 0)


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
