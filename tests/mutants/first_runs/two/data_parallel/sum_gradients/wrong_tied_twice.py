# wrong: goes through every place of a parameter, so the gradients of tied weights are added twice
from collections.abc import Sequence

from torch import nn


def sum_gradients(replicas: Sequence[nn.Module]) -> None:
    first = dict(replicas[0].named_parameters(remove_duplicate=False))
    for replica in replicas[1:]:
        for name, parameter in replica.named_parameters(remove_duplicate=False):
            if parameter.grad is None:
                continue
            moved = parameter.grad.to(first[name].device)
            first[name].grad = moved if first[name].grad is None else first[name].grad + moved
