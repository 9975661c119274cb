"""Answers to ``early_stop``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from harness import right, wrong
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


@wrong("early_stop.stops_alone", status="hang")
def tells_only_when_it_stops(model, batches, optimizer, should_stop):
    stop = torch.zeros(1)
    for step, batch in enumerate(batches, 1):
        loss = train_on(model, batch, optimizer)
        if should_stop(loss):
            return step
        if stop:
            return step
    return len(batches)


@wrong("early_stop.all_must_agree")
def counts_the_votes(model, batches, optimizer, should_stop):
    for step, batch in enumerate(batches, 1):
        loss = train_on(model, batch, optimizer)
        if reduced(should_stop(loss), dist.ReduceOp.SUM) == dist.get_world_size():
            return step
    return len(batches)


@wrong("wrong_value")
def asks_with_the_largest_loss(model, batches, optimizer, should_stop):
    for step, batch in enumerate(batches, 1):
        if should_stop(reduced(train_on(model, batch, optimizer))):
            return step
    return len(batches)


def train_and_divide_by(divisor, model, batches, optimizer, should_stop, clear=True):
    for step, (inputs, targets) in enumerate(batches, 1):
        if clear:
            optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= divisor
        optimizer.step()
        if reduced(should_stop(loss.item())):
            return step
    return len(batches)


@wrong("wrong_value")
def a_fixed_divisor(model, batches, optimizer, should_stop):
    return train_and_divide_by(2, model, batches, optimizer, should_stop)


@wrong("returned_nothing")
def breaks_and_forgets(model, batches, optimizer, should_stop):
    for batch in batches:
        if reduced(should_stop(train_on(model, batch, optimizer))):
            break


@wrong("wrong_type")
def returns_a_float(model, batches, optimizer, should_stop):
    steps = 0.0
    for batch in batches:
        steps += 1
        if reduced(should_stop(train_on(model, batch, optimizer))):
            break
    return steps


@right
def gathers_the_answers(model, batches, optimizer, should_stop):
    for step, batch in enumerate(batches, 1):
        loss = train_on(model, batch, optimizer)
        answers = [None] * dist.get_world_size()
        dist.all_gather_object(answers, bool(should_stop(loss)))
        if any(answers):
            return step
    return len(batches)


@right
def asks_before_the_step_and_stops_after_it(model, batches, optimizer, should_stop):
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


@right
def the_flag_travels_with_the_gradients(model, batches, optimizer, should_stop):
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


@wrong("early_stop.last_rank_decides")
def stops_when_one_or_all_want_to(model, batches, optimizer, should_stop):
    for step, batch in enumerate(batches, 1):
        loss = train_on(model, batch, optimizer)
        stop = reduced(should_stop(loss), dist.ReduceOp.SUM)
        if stop == 1 or stop >= dist.get_world_size():
            return step
    return len(batches)


@wrong("early_stop.last_rank_decides")
def stops_when_one_or_two_or_all_want_to(model, batches, optimizer, should_stop):
    for step, batch in enumerate(batches, 1):
        loss = train_on(model, batch, optimizer)
        if reduced(should_stop(loss), dist.ReduceOp.SUM) in (1, 2, dist.get_world_size()):
            return step
    return len(batches)


@right
def a_share_in_float32(model, batches, optimizer, should_stop):
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


@wrong("rounded")
def averages_in_float32(model, batches, optimizer, should_stop):
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
