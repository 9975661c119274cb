# wrong: starts from zeros everywhere, so parameters without any gradient get zeros and not None
from collections.abc import Sequence

import torch
from torch import nn


def sum_gradients(replicas: Sequence[nn.Module]) -> None:
    for group in zip(*(replica.parameters() for replica in replicas)):
        total = torch.zeros_like(group[0], requires_grad=False)
        for parameter in group:
            if parameter.grad is not None:
                total += parameter.grad.to(total.device)
        group[0].grad = total
