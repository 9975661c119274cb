# wrong: filters the missing gradients out before zip, so gradients meet the wrong parameters
from collections.abc import Sequence

from torch import nn


def sum_gradients(replicas: Sequence[nn.Module]) -> None:
    first = [p for p in replicas[0].parameters() if p.requires_grad]
    for replica in replicas[1:]:
        gradients = [p.grad for p in replica.parameters() if p.grad is not None]
        for parameter, gradient in zip(first, gradients):
            gradient = gradient.to(parameter.device)
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad.add_(gradient)
