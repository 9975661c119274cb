# wrong: gradients are set to zero and not to None, so momentum or weight decay moves a layer that was not used
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
        replica.zero_grad(set_to_none=False)
    outputs = parallel_apply(replicas, split(inputs, devices))
    scores = gather(outputs, devices[0])
    loss = loss_fn(scores, targets.to(devices[0]))
    loss.backward()
    sum_gradients(replicas)
    optimizer.step()
    broadcast(replicas)
    return loss.item()
