"""Answers to ``early_stop`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from torch import nn


def train_on(model, batch, optimizer):
    optimizer.zero_grad()
    inputs, targets = batch
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    average(model)
    optimizer.step()
    return loss.item()


def average(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def reduced(value, op=dist.ReduceOp.MAX):
    tensor = torch.tensor(float(value), dtype=torch.float64)
    dist.all_reduce(tensor, op=op)
    return tensor.item()


# %% gathers_the_answers: pass


def early_stop(model, batches, optimizer, should_stop):
    for step, batch in enumerate(batches, 1):
        loss = train_on(model, batch, optimizer)
        answers = [None] * dist.get_world_size()
        dist.all_gather_object(answers, bool(should_stop(loss)))
        if any(answers):
            return step
    return len(batches)


# %% asks_before_the_step_and_stops_after_it: pass


def early_stop(model, batches, optimizer, should_stop):
    step = 0
    stop = 0.0
    while step < len(batches) and not stop:
        inputs, targets = batches[step]
        model.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        stop = reduced(1 if should_stop(float(loss.detach())) else 0)
        loss.backward()
        for p in model.parameters():
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.grad)
        optimizer.step()
        step += 1
    return step


# %% the_flag_travels_with_the_gradients: pass


def early_stop(model, batches, optimizer, should_stop):
    parameters = list(model.parameters())
    for step, (inputs, targets) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        flag = torch.tensor([float(should_stop(loss.item()))], dtype=parameters[0].dtype)
        flat = torch.cat([flag, *(p.grad.flatten() for p in parameters)])
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
    for step, (inputs, targets) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        for p in model.parameters():
            p.grad *= share
            dist.all_reduce(p.grad)
        optimizer.step()
        if reduced(should_stop(loss.item())):
            return step
    return len(batches)


# %% five_flag_max: pass

# style: a flag on every rank, all-reduced with MAX in every step


def early_stop(model, batches, optimizer, should_stop) -> int:
    for step, (inputs, targets) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        stop = torch.tensor(int(should_stop(loss.item())), device=loss.device)
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop:
            return step
    return len(batches)


# %% five_flag_with_gradients: pass

# style: asks before the step; the flag travels in one vector with the gradients


def early_stop(model, batches, optimizer, should_stop) -> int:
    params = list(model.parameters())
    done = 0
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        grads = torch.autograd.grad(loss, params)
        vote = grads[0].new_tensor([1.0 if should_stop(float(loss)) else 0.0])
        flat = torch.cat([*(g.reshape(-1) for g in grads), vote])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        start = 0
        for p in params:
            p.grad = flat[start : start + p.numel()].view_as(p)
            start += p.numel()
        optimizer.step()
        done += 1
        if flat[-1] > 0:
            break
    return done


# %% five_gather_votes: pass

# style: unusual: votes as Python objects, gathered between forward and backward


def early_stop(model, batches, optimizer, should_stop) -> int:
    world = dist.get_world_size()
    votes = [False] * world
    step = 0
    while step < len(batches) and not any(votes):
        inputs, targets = batches[step]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        votes = [None] * world
        dist.all_gather_object(votes, bool(should_stop(loss.item())))
        (loss / world).backward()
        works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
        for work in works:
            work.wait()
        optimizer.step()
        step += 1
    return step


# %% five_asks_twice: pass

# mistake: calls should_stop a second time in a step (one that counts its calls is misled)


def early_stop(model, batches, optimizer, should_stop) -> int:
    for step, (inputs, targets) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
        stop = torch.tensor(int(should_stop(loss.item())))
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop or should_stop(loss.item()):
            return step
    return len(batches)


# %% asks_with_the_largest_loss: wrong wrong_value


def early_stop(model, batches, optimizer, should_stop):
    for step, batch in enumerate(batches, 1):
        if should_stop(reduced(train_on(model, batch, optimizer))):
            return step
    return len(batches)


# %% breaks_and_forgets: wrong returned_nothing


def early_stop(model, batches, optimizer, should_stop):
    for batch in batches:
        if reduced(should_stop(train_on(model, batch, optimizer))):
            break


# %% returns_a_float: wrong wrong_type


def early_stop(model, batches, optimizer, should_stop):
    steps = 0.0
    for batch in batches:
        steps += 1
        if reduced(should_stop(train_on(model, batch, optimizer))):
            break
    return steps


# %% averages_in_float32: wrong rounded


def early_stop(model, batches, optimizer, should_stop):
    for step, (inputs, targets) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        for p in model.parameters():
            sent = p.grad.float()
            dist.all_reduce(sent)
            p.grad.copy_(sent / dist.get_world_size())
        optimizer.step()
        if reduced(should_stop(loss.item())):
            return step
    return len(batches)
