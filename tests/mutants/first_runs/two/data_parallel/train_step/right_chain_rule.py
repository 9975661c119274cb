# right: chain rule by hand: gradient of the loss by the scores on GPU 0, cut and sent back to the replicas
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
