"""Answers to ``uneven_batches`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import itertools
import torch
import torch.distributed as dist
from torch import nn


def over_ranks(number, op=dist.ReduceOp.MAX):
    result = torch.tensor(number)
    dist.all_reduce(result, op=op)
    return result


def loss_of(model, batch):
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def average(p):
    dist.all_reduce(p.grad)
    p.grad /= dist.get_world_size()


def in_steps(model, batches, optimizer, average):
    for step in range(over_ranks(len(batches))):
        optimizer.zero_grad()
        if step < len(batches):
            loss_of(model, batches[step]).backward()
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            average(p)
        optimizer.step()


# %% one_flat_tensor_with_a_flag: pass
def uneven_batches(model, batches, optimizer):
    """The step in which no rank has a batch is thrown away."""
    parameters = list(model.parameters())
    sizes = [p.numel() for p in parameters]
    for step in itertools.count():
        flat = parameters[0].new_zeros(sum(sizes) + 1, requires_grad=False)
        if step < len(batches):
            gradients = torch.autograd.grad(loss_of(model, batches[step]), parameters)
            flat = torch.cat([*(g.flatten() for g in gradients), flat.new_ones(1)])
        dist.all_reduce(flat)
        if flat[-1] == 0:
            break
        for p, piece in zip(parameters, (flat[:-1] / flat[-1]).split(sizes)):
            p.grad = piece.view_as(p)
        optimizer.step()


# %% everybody_trains_on_all: pass
def uneven_batches(model, batches, optimizer):
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, batches)
    for step in range(max(map(len, everything))):
        optimizer.zero_grad()
        losses = [loss_of(model, own[step]) for own in everything if step < len(own)]
        (sum(losses) / len(losses)).backward()
        optimizer.step()


# %% shares_in_float32: pass
def uneven_batches(model, batches, optimizer):
    """Quotients of whole-number tensors."""
    world = torch.tensor(dist.get_world_size())
    for step in range(over_ranks(len(batches))):
        optimizer.zero_grad()
        busy = over_ranks(int(step < len(batches)), dist.ReduceOp.SUM)
        if step < len(batches):
            loss_of(model, batches[step]).backward()
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
            p.grad *= 1 / world
            p.grad *= world / busy
        optimizer.step()


# %% rank_zero_averages_and_tells: pass
def uneven_batches(model, batches, optimizer):
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, len(batches))
    for step in range(max(counts)):
        optimizer.zero_grad()
        if step < len(batches):
            loss_of(model, batches[step]).backward()
        else:
            sum((p * 0).sum() for p in model.parameters()).backward()
        for p in model.parameters():
            dist.reduce(p.grad, dst=0)
            p.grad /= sum(count > step for count in counts)
            dist.broadcast(p.grad, src=0)
        optimizer.step()


# %% all_send_at_the_end: hang deadlock
def uneven_batches(model, batches, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        for p in model.parameters():
            average(p)
        optimizer.step()
    dist.send(torch.ones(1), (dist.get_rank() + 1) % dist.get_world_size())


# %% divides_by_its_own_number: wrong wrong_values
def uneven_batches(model, batches, optimizer):
    def average(p):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_rank() + 1

    in_steps(model, batches, optimizer, average)


# %% joins_as_ddp_does: wrong refused_name
def uneven_batches(model, batches, optimizer):
    ddp = nn.parallel.DistributedDataParallel(model)
    with ddp.join():
        for batch in batches:
            optimizer.zero_grad()
            loss_of(ddp, batch).backward()
            optimizer.step()


# %% makes_batches_of_float32_zeros: crash exception
def uneven_batches(model, batches, optimizer):
    shapes = [None] * dist.get_world_size()
    dist.all_gather_object(shapes, [t.shape for t in batches[0]] if batches else None)
    zeros = [torch.zeros(shape) for shape in next(s for s in shapes if s)]
    for step in range(over_ranks(len(batches))):
        optimizer.zero_grad()
        loss_of(model, batches[step] if step < len(batches) else zeros).backward()
        for p in model.parameters():
            average(p)
        optimizer.step()
