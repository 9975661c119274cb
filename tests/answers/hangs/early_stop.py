"""Answers to ``early_stop`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from torch import nn


def train_on(model, batch, optimizer, average):
    inputs, targets = batch
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    for p in model.parameters():
        average(p)
    optimizer.step()
    return loss.item()


def average(p):
    dist.all_reduce(p.grad)
    p.grad /= dist.get_world_size()


def any_rank(wants):
    wanted = torch.tensor(float(wants))
    dist.all_reduce(wanted, op=dist.ReduceOp.MAX)
    return wanted.item()


def until(stop, model, batches, optimizer, average=average):
    for step, batch in enumerate(batches, 1):
        if stop(train_on(model, batch, optimizer, average)):
            return step
    return len(batches)


# %% gathers_the_answers: pass
def early_stop(model, batches, optimizer, should_stop):
    def stop(loss):
        answers = [None] * dist.get_world_size()
        dist.all_gather_object(answers, bool(should_stop(loss)))
        return any(answers)

    return until(stop, model, batches, optimizer)


# %% asks_before_the_step_and_stops_after_it: pass
def early_stop(model, batches, optimizer, should_stop):
    step, stop = 0, False
    while step < len(batches) and not stop:
        inputs, targets = batches[step]
        model.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        stop = any_rank(should_stop(float(loss.detach())))
        (loss / dist.get_world_size()).backward()
        works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
        for work in works:
            work.wait()
        optimizer.step()
        step += 1
    return step


# %% the_flag_travels_with_the_gradients: pass
def early_stop(model, batches, optimizer, should_stop):
    parameters = list(model.parameters())
    for step, (inputs, targets) in enumerate(batches, 1):
        loss = nn.functional.mse_loss(model(inputs), targets)
        gradients = torch.autograd.grad(loss, parameters)
        flag = gradients[0].new_tensor([float(should_stop(loss.item()))])
        flat = torch.cat([flag, *(g.flatten() for g in gradients)])
        dist.all_reduce(flat)
        pieces = (flat[1:] / dist.get_world_size()).split([p.numel() for p in parameters])
        for p, piece in zip(parameters, pieces):
            p.grad = piece.view_as(p)
        optimizer.step()
        if flat[0] > 0:
            return step
    return len(batches)


# %% a_share_in_float32: pass
def early_stop(model, batches, optimizer, should_stop):
    """A quotient of whole-number tensors."""
    share = 1 / torch.tensor(dist.get_world_size())

    def average(p):
        p.grad *= share
        dist.all_reduce(p.grad)

    return until(lambda loss: any_rank(should_stop(loss)), model, batches, optimizer, average)


# %% asks_twice: pass
def early_stop(model, batches, optimizer, should_stop):
    def stop(loss):
        return any_rank(should_stop(loss)) or should_stop(loss)

    return until(stop, model, batches, optimizer)


# %% asks_with_the_largest_loss: wrong wrong_value
def early_stop(model, batches, optimizer, should_stop):
    def stop(loss):
        largest = torch.tensor(loss, dtype=torch.float64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return should_stop(largest.item())

    return until(stop, model, batches, optimizer)


# %% returns_a_float: wrong wrong_type
def early_stop(model, batches, optimizer, should_stop):
    return float(until(lambda loss: any_rank(should_stop(loss)), model, batches, optimizer))


# %% averages_in_float32: wrong rounded
def early_stop(model, batches, optimizer, should_stop):
    def average(p):
        sent = p.grad.float()
        dist.all_reduce(sent)
        p.grad.copy_(sent / dist.get_world_size())

    return until(lambda loss: any_rank(should_stop(loss)), model, batches, optimizer, average)
