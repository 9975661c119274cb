# right: a thread per GPU does forward, loss and autograd.grad; no .grad of the copies is ever touched
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import torch
from torch import Tensor, nn


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
