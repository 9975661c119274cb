# wrong: optimizer.zero_grad() clears the first replica only, the gradients of the others pile up
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
    optimizer.zero_grad()
    outputs = parallel_apply(replicas, split(inputs, devices))
    scores = gather(outputs, devices[0])
    loss = loss_fn(scores, targets.to(devices[0]))
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()
