# wrong: a parameter without a gradient in the first replica is skipped, those of the others are lost
from collections.abc import Sequence

from torch import nn


def sum_gradients(replicas: Sequence[nn.Module]) -> None:
    for first, *others in zip(*(replica.parameters() for replica in replicas)):
        if first.grad is None:
            continue
        for other in others:
            if other.grad is not None:
                first.grad += other.grad.to(first.device)
