"""Answers to ``train_step``: how learners get it wrong, and ways to get it right.

They may call the other functions of the module, which are those of the solution.
"""
# ruff: noqa (learners write like this)

import copy

import torch
from data_parallel import broadcast, gather, parallel_apply, split, sum_gradients
from harness import right, wrong


def homes(replicas):
    return [next(replica.parameters()).device for replica in replicas]


def clear(replicas):
    for replica in replicas:
        replica.zero_grad()


def whole_loss(replicas, inputs, targets, loss_fn):
    devices = homes(replicas)
    outputs = parallel_apply(replicas, split(inputs, devices))
    return loss_fn(gather(outputs, devices[0]), targets.to(devices[0]))


@wrong("train_step.gradients_never_cleared")
def no_zero_grad(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)
    for replica in replicas[1:]:
        replica.zero_grad()
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.gradients_never_cleared")
def no_zero_grad_anywhere(replicas, inputs, targets, loss_fn, optimizer):
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.gradients_not_summed")
def sums_after_the_step(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    optimizer.step()
    sum_gradients(replicas)
    broadcast(replicas)
    return loss.item()


@wrong("train_step.no_step")
def clears_right_after_backward(replicas, inputs, targets, loss_fn, optimizer):
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    for replica in replicas:
        replica.zero_grad()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("train_step.momentum_lost")
def new_optimizer_at_every_step(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)
    optimizer = type(optimizer)(optimizer.param_groups[0]["params"], **optimizer.defaults)
    for replica in replicas:
        replica.zero_grad()
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("returned_nothing")
def forgets_to_return(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)


@wrong("train_step.needs_as_many_rows_as_gpus", status="crash")
def needs_as_many_rows_as_gpus(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    devices = homes(replicas)
    chunks, wanted = split(inputs, devices), split(targets, devices)
    outputs = [replicas[i](chunks[i]) for i in range(len(replicas))]
    loss = loss_fn(gather(outputs, devices[0]), gather(wanted, devices[0]))
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("wrong_values")
def clips_the_gradients_of_each_replica(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    for replica in replicas:
        torch.nn.utils.clip_grad_norm_(replica.parameters(), 0.1)
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@right
def weighs_the_losses_of_the_chunks(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)
    clear(replicas)
    outputs = parallel_apply(replicas, split(inputs, devices))
    total = 0.0
    for output, target in zip(outputs, split(targets, devices)):
        loss = loss_fn(output, target) * (len(target) / len(targets))
        loss.backward()
        total += loss.item()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return total


@right
def without_the_other_functions(replicas, inputs, targets, loss_fn, optimizer):
    main = replicas[0]
    devices = homes(replicas)
    for replica in replicas[1:]:
        with torch.no_grad():
            for mine, theirs in zip(replica.parameters(), main.parameters()):
                mine.grad = None
                mine.copy_(theirs)
    optimizer.zero_grad()
    outputs = [
        replica(chunk.to(device)).to(devices[0])
        for replica, chunk, device in zip(replicas, inputs.chunk(len(replicas)), devices)
    ]
    loss = loss_fn(torch.cat(outputs), targets.to(devices[0]))
    loss.backward()
    for mine, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            if other.grad is not None:
                mine.grad += other.grad.to(devices[0])
    optimizer.step()
    with torch.no_grad():
        for replica in replicas[1:]:
            for mine, theirs in zip(replica.parameters(), main.parameters()):
                mine.copy_(theirs)
            for mine, theirs in zip(replica.buffers(), main.buffers()):
                mine.copy_(theirs)
    return float(loss)


@right
def clears_at_the_end(replicas, inputs, targets, loss_fn, optimizer):
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    optimizer.zero_grad()
    for replica in replicas:
        for parameter in replica.parameters():
            parameter.grad = None
    broadcast(replicas)
    return loss.detach().cpu().item()


@right
def gradients_asked_for_by_name(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)
    chunks = split(inputs, devices)
    busy = list(replicas)[: len(chunks)]
    loss = loss_fn(gather(parallel_apply(busy, chunks), devices[0]), targets.to(devices[0]))
    trained = [[p for p in replica.parameters() if p.requires_grad] for replica in busy]
    found = torch.autograd.grad(loss, [p for some in trained for p in some], allow_unused=True)
    for i, parameter in enumerate(trained[0]):
        parts = [part.to(devices[0]) for part in found[i :: len(trained[0])] if part is not None]
        parameter.grad = sum(parts) if parts else None
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@right
def as_one_closure(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)

    def closure():
        for replica in replicas:
            replica.zero_grad()
        outputs = parallel_apply(replicas, split(inputs, devices))
        loss = loss_fn(gather(outputs, devices[0]), targets.to(devices[0]))
        loss.backward()
        sum_gradients(replicas)
        return loss

    with torch.enable_grad():
        loss = optimizer.step(closure)
    broadcast(replicas)
    return loss.item()


@right
def loss_on_the_cpu(replicas, inputs, targets, loss_fn, optimizer):
    for replica in replicas:
        replica.train().zero_grad()
    chunks = split(inputs, [next(replica.parameters()).device for replica in replicas])
    outputs = [output.cpu() for output in parallel_apply(replicas, chunks)]
    loss = loss_fn(torch.cat(outputs), targets.cpu())
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return float(loss)


@right
def calls_forward_of_new_copies(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)
    optimizer.zero_grad()
    copies = [copy.deepcopy(replicas[0]).to(device) for device in devices[1:]]
    busy = [replicas[0], *copies]
    for replica in busy:
        replica.zero_grad()
    outputs = [replica.forward(chunk) for replica, chunk in zip(busy, split(inputs, devices))]
    loss = loss_fn(gather(outputs, devices[0]), targets.to(devices[0]))
    loss.backward()
    sum_gradients(busy)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("rounded")
def sums_in_float32(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    for own in zip(*(replica.parameters() for replica in replicas)):
        there = [p.grad.float().to(devices[0]) for p in own if p.grad is not None]
        if there:
            own[0].grad = sum(there).to(own[0].dtype)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


@wrong("rounded")
def returns_the_loss_as_float32(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.float().item()


@right
def a_share_in_float32(replicas, inputs, targets, loss_fn, optimizer):
    """A quotient of whole-number tensors."""
    devices = homes(replicas)
    clear(replicas)
    outputs = parallel_apply(replicas, split(inputs, devices))
    total = 0.0
    for output, target in zip(outputs, split(targets, devices)):
        loss = loss_fn(output, target) * (torch.tensor(len(target)) / torch.tensor(len(targets)))
        loss.backward()
        total += loss.item()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return total
