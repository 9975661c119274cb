"""Answers to ``train_step`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import copy
import torch


def homes(replicas):
    return [next(replica.parameters()).device for replica in replicas]


def forward(replicas, inputs):
    """The outputs of the chunks, each on its GPU, after all gradients are cleared."""
    for replica in replicas:
        replica.zero_grad()
    return parallel_apply(replicas, split(inputs, homes(replicas)))


def backward(replicas, inputs, targets, loss_fn):
    home = homes(replicas)[0]
    loss = loss_fn(gather(forward(replicas, inputs), home), targets.to(home))
    loss.backward()
    return loss.item()


def finish(replicas, optimizer):
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)


# %% without_the_other_functions: pass
def train_step(replicas, inputs, targets, loss_fn, optimizer):
    """The chain rule by hand: the gradient of the outputs is cut and sent back to the replicas."""
    n, devices = len(replicas), homes(replicas)
    for replica in replicas:
        for parameter in replica.parameters():
            parameter.grad = None
    outputs = [r(chunk.to(d)) for r, chunk, d in zip(replicas, inputs.chunk(n), devices)]
    whole = torch.cat([output.detach().to(devices[0]) for output in outputs]).requires_grad_()
    loss = loss_fn(whole, targets.to(devices[0]))
    (slope,) = torch.autograd.grad(loss, whole)
    for output, piece in zip(outputs, slope.split([len(output) for output in outputs])):
        output.backward(piece.to(output.device))
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            if other.grad is not None:
                first.grad += other.grad.to(devices[0])
    optimizer.step()
    with torch.no_grad():
        for replica in replicas[1:]:
            for target, source in zip(replica.parameters(), replicas[0].parameters()):
                target.copy_(source)
            for target, source in zip(replica.buffers(), replicas[0].buffers()):
                target.copy_(source)
    return float(loss)


# %% clears_at_the_end: pass
def train_step(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)
    outputs = gather(parallel_apply(replicas, split(inputs, devices)), devices[0])
    loss = loss_fn(outputs, targets.to(devices[0]))
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    for replica in replicas:
        replica.zero_grad()
    broadcast(replicas)
    return loss.detach().cpu().item()


# %% gradients_asked_for_by_name: pass
def train_step(replicas, inputs, targets, loss_fn, optimizer):
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


# %% as_one_closure: pass
def train_step(replicas, inputs, targets, loss_fn, optimizer):
    def closure():
        loss = backward(replicas, inputs, targets, loss_fn)
        sum_gradients(replicas)
        return loss

    with torch.enable_grad():
        loss = optimizer.step(closure)
    broadcast(replicas)
    return loss


# %% loss_on_the_cpu: pass
def train_step(replicas, inputs, targets, loss_fn, optimizer):
    outputs = [output.cpu() for output in forward(replicas, inputs)]
    loss = loss_fn(torch.cat(outputs), targets.cpu())
    loss.backward()
    finish(replicas, optimizer)
    return float(loss)


# %% calls_forward_of_new_copies: pass
def train_step(replicas, inputs, targets, loss_fn, optimizer):
    devices = homes(replicas)
    optimizer.zero_grad()
    copies = [copy.deepcopy(replicas[0]).to(device) for device in devices[1:]]
    busy = [replicas[0], *copies]
    outputs = [replica.forward(chunk) for replica, chunk in zip(busy, split(inputs, devices))]
    loss = loss_fn(gather(outputs, devices[0]), targets.to(devices[0]))
    loss.backward()
    sum_gradients(busy)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


# %% a_share_in_float32: pass
def train_step(replicas, inputs, targets, loss_fn, optimizer):
    """A quotient of whole-number tensors."""
    total = 0.0
    pairs = zip(forward(replicas, inputs), split(targets, homes(replicas)))
    for output, target in pairs:
        loss = loss_fn(output, target) * (torch.tensor(len(target)) / torch.tensor(len(targets)))
        loss.backward()
        total += loss.item()
    finish(replicas, optimizer)
    return total


# %% forgets_to_return: wrong returned_nothing
def train_step(replicas, inputs, targets, loss_fn, optimizer):
    backward(replicas, inputs, targets, loss_fn)
    finish(replicas, optimizer)


# %% sums_in_float32: wrong rounded
def train_step(replicas, inputs, targets, loss_fn, optimizer):
    loss = backward(replicas, inputs, targets, loss_fn)
    for own in zip(*(replica.parameters() for replica in replicas)):
        there = [p.grad.float().to(own[0].device) for p in own if p.grad is not None]
        if there:
            own[0].grad = sum(there).to(own[0].dtype)
    optimizer.step()
    broadcast(replicas)
    return loss


# %% leaves_the_last_replica_without_rows: wrong wrong_value
def train_step(replicas, inputs, targets, loss_fn, optimizer):
    replicas[-1].zero_grad()
    loss = backward(replicas[:-1] or replicas, inputs, targets, loss_fn)
    finish(replicas, optimizer)
    return loss


# %% clears_the_rows_afterwards: wrong wrong_value
def train_step(replicas, inputs, targets, loss_fn, optimizer):
    loss = backward(replicas, inputs, targets, loss_fn)
    finish(replicas, optimizer)
    inputs.zero_()
    return loss
