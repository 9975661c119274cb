"""Answers to ``train_step`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import copy
import torch
from collections.abc import Callable
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from torch import Tensor
from torch import nn


def homes(replicas):
    return [next(replica.parameters()).device for replica in replicas]


def clear(replicas):
    for replica in replicas:
        replica.zero_grad()


def whole_loss(replicas, inputs, targets, loss_fn):
    devices = homes(replicas)
    outputs = parallel_apply(replicas, split(inputs, devices))
    return loss_fn(gather(outputs, devices[0]), targets.to(devices[0]))


# %% weighs_the_losses_of_the_chunks: pass


def train_step(replicas, inputs, targets, loss_fn, optimizer):
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


# %% without_the_other_functions: pass


def train_step(replicas, inputs, targets, loss_fn, optimizer):
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


# %% clears_at_the_end: pass


def train_step(replicas, inputs, targets, loss_fn, optimizer):
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


# %% loss_on_the_cpu: pass


def train_step(replicas, inputs, targets, loss_fn, optimizer):
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


# %% calls_forward_of_new_copies: pass


def train_step(replicas, inputs, targets, loss_fn, optimizer):
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


# %% a_share_in_float32: pass


def train_step(replicas, inputs, targets, loss_fn, optimizer):
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


# %% one_siblings: pass


# right: the functions above, one loss on the gathered outputs
def train_step(replicas, inputs, targets, loss_fn, optimizer):
    devices = [next(replica.parameters()).device for replica in replicas]
    optimizer.zero_grad()
    for replica in replicas:
        replica.zero_grad()

    chunks = split(inputs, devices)
    outputs = gather(parallel_apply(replicas, chunks), devices[0])
    loss = loss_fn(outputs, targets.to(devices[0]))
    loss.backward()

    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


# %% one_weighted_losses: pass

# right: without the other functions, one loss per GPU weighted with its share of the rows


def train_step(replicas, inputs, targets, loss_fn, optimizer):
    rows = len(inputs)
    k = len(replicas)
    for replica in replicas:
        for p in replica.parameters():
            p.grad = None

    pairs = list(zip(replicas, inputs.chunk(k), targets.chunk(k)))
    losses = []
    for replica, x, y in pairs:
        device = next(replica.parameters()).device
        share = len(x) / rows
        losses.append(loss_fn(replica(x.to(device)), y.to(device)) * share)
    total = 0.0
    for loss in losses:
        loss.backward()
        total += loss.item()

    main = replicas[0]
    for replica in replicas[1:]:
        for p, q in zip(main.parameters(), replica.parameters()):
            if q.grad is not None:
                g = q.grad.to(p.device)
                p.grad = g.clone() if p.grad is None else p.grad + g
    optimizer.step()
    with torch.no_grad():
        for replica in replicas[1:]:
            for p, q in zip(main.parameters(), replica.parameters()):
                q.copy_(p)
            for a, b in zip(main.buffers(), replica.buffers()):
                b.copy_(a)
    return total


# %% two_autograd_grad: pass

# right: a thread per GPU does forward, loss and autograd.grad; no .grad of the copies is ever touched


def _gradients(replica, rows, wanted, share, loss_fn):
    parameters = [p for p in replica.parameters() if p.requires_grad]
    home = parameters[0].device
    with torch.enable_grad():
        loss = loss_fn(replica(rows.to(home)), wanted.to(home)) * share
    if not loss.requires_grad:
        return loss.item(), [None] * len(parameters)
    return loss.item(), torch.autograd.grad(loss, parameters, allow_unused=True)


def train_step(
    replicas: Sequence[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
) -> float:
    total = inputs.shape[0]
    size = -(-total // len(replicas))
    with ThreadPoolExecutor(max_workers=len(replicas)) as pool:
        jobs = []
        for i, start in enumerate(range(0, total, size)):
            rows, wanted = inputs[start : start + size], targets[start : start + size]
            jobs.append(
                pool.submit(_gradients, replicas[i], rows, wanted, len(rows) / total, loss_fn)
            )
        results = [job.result() for job in jobs]

    optimizer.zero_grad()
    trained = [p for p in replicas[0].parameters() if p.requires_grad]
    for parameter, *parts in zip(trained, *(gradients for _, gradients in results)):
        parts = [part.to(parameter.device) for part in parts if part is not None]
        parameter.grad = sum(parts[1:], start=parts[0]) if parts else None
    optimizer.step()

    for replica in replicas[1:]:
        source = chain(replicas[0].parameters(), replicas[0].buffers())
        for target, values in zip(chain(replica.parameters(), replica.buffers()), source):
            target.data.copy_(values.data)
    return sum(loss for loss, _ in results)


# %% two_chain_rule: pass

# right: chain rule by hand: gradient of the loss by the scores on GPU 0, cut and sent back to the replicas


def train_step(
    replicas: Sequence[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
) -> float:
    homes = [next(replica.parameters()).device for replica in replicas]
    for replica in replicas:
        for parameter in replica.parameters():
            parameter.grad = None

    outputs = [
        replica(chunk.to(home))
        for replica, chunk, home in zip(replicas, inputs.chunk(len(replicas)), homes)
    ]
    scores = torch.cat([output.detach().to(homes[0]) for output in outputs]).requires_grad_()
    loss = loss_fn(scores, targets.to(homes[0]))
    (slope,) = torch.autograd.grad(loss, scores)
    for output, piece in zip(outputs, slope.split([len(output) for output in outputs])):
        if output.requires_grad:
            output.backward(piece.to(output.device))

    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        for other in others:
            if other.grad is not None:
                moved = other.grad.to(first.device)
                first.grad = moved if first.grad is None else first.grad + moved
                other.grad = None
    optimizer.step()

    with torch.no_grad():
        for replica in replicas[1:]:
            for target, source in zip(replica.parameters(), replicas[0].parameters()):
                target.copy_(source)
            for target, source in zip(replica.buffers(), replicas[0].buffers()):
                target.copy_(source)
    return loss.item()


# %% two_weighted_losses: pass

# right: siblings; the chunk losses are weighted by rows and all of them are roots of one backward


def train_step(
    replicas: Sequence[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
) -> float:
    for replica in replicas:
        replica.zero_grad(set_to_none=True)
    devices = [next(replica.parameters()).device for replica in replicas]
    outputs = parallel_apply(replicas, split(inputs, devices))
    wanted = split(targets, devices)
    losses = [
        loss_fn(output, target) * (len(target) / len(targets))
        for output, target in zip(outputs, wanted)
    ]
    torch.autograd.backward(losses)
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return sum(loss.item() for loss in losses)


# %% forgets_to_return: wrong returned_nothing


def train_step(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)


# %% clips_the_gradients_of_each_replica: wrong wrong_values


def train_step(replicas, inputs, targets, loss_fn, optimizer):
    clear(replicas)
    loss = whole_loss(replicas, inputs, targets, loss_fn)
    loss.backward()
    for replica in replicas:
        torch.nn.utils.clip_grad_norm_(replica.parameters(), 0.1)
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()


# %% sums_in_float32: wrong rounded


def train_step(replicas, inputs, targets, loss_fn, optimizer):
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
