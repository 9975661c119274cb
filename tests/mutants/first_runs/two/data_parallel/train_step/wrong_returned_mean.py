# wrong: the gradients are weighted by rows, but the loss that is returned is the plain mean of the chunk losses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def train_step(
    replicas: Sequence[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
) -> float:
    devices = [next(replica.parameters()).device for replica in replicas]
    for replica in replicas:
        replica.zero_grad()
    outputs = parallel_apply(replicas, split(inputs, devices))
    losses = []
    for output, target in zip(outputs, split(targets, devices)):
        loss = loss_fn(output, target)
        (loss * len(target) / len(targets)).backward()
        losses.append(loss.item())
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return sum(losses) / len(losses)
