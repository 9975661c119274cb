"""Answers to ``uneven_batches``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import torch
import torch.distributed as dist
from harness import right, wrong
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


@wrong("uneven_batches.out_of_batches", status="hang")
def returns_when_it_has_no_batch(model, batches, optimizer):
    for step in range(most_batches(batches)):
        if step >= len(batches):
            return
        optimizer.zero_grad()
        backward(model, batches[step])
        average(model)
        optimizer.step()


@wrong("uneven_batches.out_of_batches", status="hang")
def stays_and_skips_gradients_that_are_none(model, batches, optimizer):
    for step in range(most_batches(batches)):
        optimizer.zero_grad()
        if step < len(batches):
            backward(model, batches[step])
        for p in model.parameters():
            if p.grad is None:
                continue
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()


@wrong("deadlock", status="hang")
def all_send_at_the_end(model, batches, optimizer):
    for batch in batches:
        optimizer.zero_grad()
        backward(model, batch)
        average(model)
        optimizer.step()
    dist.send(torch.ones(1), (dist.get_rank() + 1) % dist.get_world_size())


@wrong("uneven_batches.other_calls")
def skips_gradients_that_are_none(model, batches, optimizer):
    for step in range(most_batches(batches)):
        optimizer.zero_grad()
        if step < len(batches):
            backward(model, batches[step])
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        optimizer.step()
        dist.barrier()


@wrong("wrong_values")
def divides_by_its_own_number(model, batches, optimizer):
    for step in range(most_batches(batches)):
        optimizer.zero_grad()
        if step < len(batches):
            backward(model, batches[step])
        average(model, divisor=dist.get_rank() + 1)
        optimizer.step()


@wrong("uneven_batches.fixed_divisor")
def a_fixed_divisor(model, batches, optimizer):
    for step in range(most_batches(batches)):
        optimizer.zero_grad()
        if step < len(batches):
            backward(model, batches[step])
        average(model, divisor=2)
        optimizer.step()


@wrong("uneven_batches.batches_left_out")
def four_steps_always(model, batches, optimizer):
    for step in range(4):
        busy = torch.tensor(float(step < len(batches)))
        dist.all_reduce(busy)
        if busy:
            optimizer.zero_grad()
            if step < len(batches):
                backward(model, batches[step])
            average(model)
            optimizer.step()


@wrong("refused_name")
def joins_as_ddp_does(model, batches, optimizer):
    ddp = nn.parallel.DistributedDataParallel(model)
    with ddp.join():
        for inputs, targets in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(ddp(inputs), targets).backward()
            optimizer.step()


@right
def one_flat_tensor(model, batches, optimizer):
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


@right
def weighs_by_rows(model, batches, optimizer):
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


@right
def everybody_trains_on_all(model, batches, optimizer):
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, batches)
    for step in range(max(map(len, everything))):
        here = [own[step] for own in everything if step < len(own)]
        optimizer.zero_grad()
        losses = [nn.functional.mse_loss(model(x), y) for x, y in here]
        (sum(losses) / len(losses)).backward()
        optimizer.step()


@right
def a_share_in_float32(model, batches, optimizer):
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


@wrong("rounded")
def averages_in_float32(model, batches, optimizer):
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


@wrong("rounded")
def averages_over_those_present_in_float32(model, batches, optimizer):
    for step in range(most_batches(batches)):
        optimizer.zero_grad()
        has = torch.tensor(int(step < len(batches)))
        dist.all_reduce(has)
        if step < len(batches):
            backward(model, batches[step])
        for p in model.parameters():
            sent = torch.zeros_like(p) if p.grad is None else p.grad
            sent = sent.float()
            dist.all_reduce(sent)
            p.grad = sent.to(p.dtype) / has.item()
        optimizer.step()


@right
def shares_in_float32(model, batches, optimizer):
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
