# wrong: only the parameters are copied to the other replicas, running buffers drift apart
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
    loss = loss_fn(gather(outputs, devices[0]), targets.to(devices[0]))
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    with torch.no_grad():
        for replica in replicas[1:]:
            for target, source in zip(replica.parameters(), replicas[0].parameters()):
                target.copy_(source)
    return loss.item()
