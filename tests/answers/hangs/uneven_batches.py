"""Answers to ``uneven_batches`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import itertools
import torch
import torch.distributed as dist
from torch import nn


def most_batches(batches, op=dist.ReduceOp.MAX):
    count = torch.tensor(len(batches))
    dist.all_reduce(count, op=op)
    return count.item()


def backward(model, batch):
    inputs, targets = batch
    nn.functional.mse_loss(model(inputs), targets).backward()


def average(model, divisor=None):
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= divisor or dist.get_world_size()


# %% one_flat_tensor: pass


def uneven_batches(model, batches, optimizer):
    parameters = list(model.parameters())
    for step in range(most_batches(batches)):
        model.zero_grad()
        flat = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype)
        if step < len(batches):
            backward(model, batches[step])
            flat = torch.cat([p.grad.flatten() for p in parameters])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for p, piece in zip(parameters, flat.split([p.numel() for p in parameters])):
            p.grad = piece.view_as(p)
        optimizer.step()


# %% weighs_by_rows: pass


def uneven_batches(model, batches, optimizer):
    for step in range(most_batches(batches)):
        optimizer.zero_grad()
        rows = torch.tensor(0.0)
        if step < len(batches):
            backward(model, batches[step])
            rows += len(batches[step][0])
        mine = rows.item()
        dist.all_reduce(rows)
        for p in model.parameters():
            grad = torch.zeros_like(p) if p.grad is None else p.grad * mine
            handle = dist.all_reduce(grad, async_op=True)
            handle.wait()
            p.grad = grad / rows.item()
        optimizer.step()


# %% everybody_trains_on_all: pass


def uneven_batches(model, batches, optimizer):
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, batches)
    for step in range(max(map(len, everything))):
        here = [own[step] for own in everything if step < len(own)]
        optimizer.zero_grad()
        losses = [nn.functional.mse_loss(model(x), y) for x, y in here]
        (sum(losses) / len(losses)).backward()
        optimizer.step()


# %% a_share_in_float32: pass


def uneven_batches(model, batches, optimizer):
    """A quotient of whole-number tensors."""
    for step in range(most_batches(batches)):
        optimizer.zero_grad()
        has = torch.tensor(int(step < len(batches)))
        dist.all_reduce(has)
        if step < len(batches):
            backward(model, batches[step])
        for p in model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad *= 1 / has
        optimizer.step()


# %% shares_in_float32: pass


def uneven_batches(model, batches, optimizer):
    world = torch.tensor(dist.get_world_size())
    for step in range(most_batches(batches)):
        optimizer.zero_grad()
        has = torch.tensor(int(step < len(batches)))
        dist.all_reduce(has)
        if step < len(batches):
            backward(model, batches[step])
        for p in model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad *= 1 / world
            p.grad *= world / has
        optimizer.step()


# %% five_ask_every_step: pass

# style: asks before every step who still has a batch; divides by the ranks that have one


def uneven_batches(model, batches, optimizer) -> None:
    iterator = iter(batches)
    device = next(model.parameters()).device
    while True:
        batch = next(iterator, None)
        active = torch.tensor(float(batch is not None), device=device)
        dist.all_reduce(active)
        if active == 0:
            return
        optimizer.zero_grad(set_to_none=False)
        if batch is not None:
            inputs, targets = batch
            nn.functional.mse_loss(model(inputs), targets).backward()
        for p in model.parameters():
            grad = p.grad if p.grad is not None else torch.zeros_like(p)
            dist.all_reduce(grad)
            p.grad = grad / active
        optimizer.step()


# %% five_flat_with_flag: pass

# style: gradients and a flag in one message; the step in which nobody had a batch is thrown away


def uneven_batches(model, batches, optimizer) -> None:
    params = list(model.parameters())
    sizes = [p.numel() for p in params]
    step = 0
    while True:
        flat = params[0].new_zeros(sum(sizes) + 1, requires_grad=False)
        if step < len(batches):
            inputs, targets = batches[step]
            loss = nn.functional.mse_loss(model(inputs), targets)
            grads = torch.autograd.grad(loss, params)
            flat[:-1] = torch.cat([g.reshape(-1) for g in grads])
            flat[-1] = 1
        dist.all_reduce(flat)
        if flat[-1] == 0:
            break
        flat /= flat[-1].clone()
        for p, part in zip(params, flat[:-1].split(sizes)):
            p.grad = part.view_as(p).clone()
        optimizer.step()
        step += 1


# %% five_longest_first: pass

# style: agrees on the longest list first, then a plain loop; divides by all ranks


def uneven_batches(model, batches, optimizer) -> None:
    parameters = list(model.parameters())
    steps = torch.tensor(len(batches), device=parameters[0].device)
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    for step in range(int(steps)):
        optimizer.zero_grad()
        if step < len(batches):
            inputs, targets = batches[step]
            nn.functional.mse_loss(model(inputs), targets).backward()
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()


# %% five_rank0_averages: pass

# style: unusual: counts as objects, zero loss for missing batches, reduce to rank 0 and broadcast of the mean


def _loss(model, batch):
    if batch is None:
        return sum((p * 0).sum() for p in model.parameters())
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def uneven_batches(model, batches, optimizer) -> None:
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, len(batches))
    padded = itertools.islice(itertools.chain(batches, itertools.repeat(None)), max(counts))
    for step, batch in enumerate(padded):
        active = sum(count > step for count in counts)
        optimizer.zero_grad()
        _loss(model, batch).backward()
        for p in model.parameters():
            dist.reduce(p.grad, dst=0)
            p.grad.div_(active)
            dist.broadcast(p.grad, src=0)
        optimizer.step()


# %% all_send_at_the_end: hang deadlock


def uneven_batches(model, batches, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        backward(model, batch)
        average(model)
        optimizer.step()
    dist.send(torch.ones(1), (dist.get_rank() + 1) % dist.get_world_size())


# %% divides_by_its_own_number: wrong wrong_values


def uneven_batches(model, batches, optimizer):
    for step in range(most_batches(batches)):
        optimizer.zero_grad()
        if step < len(batches):
            backward(model, batches[step])
        average(model, divisor=dist.get_rank() + 1)
        optimizer.step()


# %% joins_as_ddp_does: wrong refused_name


def uneven_batches(model, batches, optimizer):
    ddp = nn.parallel.DistributedDataParallel(model)
    with ddp.join():
        for inputs, targets in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(ddp(inputs), targets).backward()
            optimizer.step()


# %% averages_in_float32: wrong rounded


def uneven_batches(model, batches, optimizer):
    for step in range(most_batches(batches)):
        optimizer.zero_grad()
        if step < len(batches):
            backward(model, batches[step])
        for p in model.parameters():
            sent = torch.zeros_like(p) if p.grad is None else p.grad
            sent = sent.float()
            dist.all_reduce(sent)
            p.grad = sent.to(p.dtype) / dist.get_world_size()
        optimizer.step()


# %% five_zero_rows: crash exception

# mistake: pads with batches of zeros, whose gradient is not zero because of the biases


def uneven_batches(model, batches, optimizer) -> None:
    steps = torch.tensor(len(batches))
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    shapes = [None] * dist.get_world_size()
    dist.all_gather_object(shapes, (batches[0][0].shape, batches[0][1].shape) if batches else None)
    inputs_shape, targets_shape = next((s for s in shapes if s), (None, None))
    for step in range(int(steps)):
        if step < len(batches):
            inputs, targets = batches[step]
        else:
            inputs, targets = torch.zeros(inputs_shape), torch.zeros(targets_shape)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
