# right: siblings; the chunk losses are weighted by rows and all of them are roots of one backward
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
