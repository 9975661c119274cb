# right: let autograd accumulate: backward on a leaf with a given gradient adds this to its .grad
from collections.abc import Sequence

import torch
from torch import nn


def sum_gradients(replicas: Sequence[nn.Module]) -> None:
    first = replicas[0]
    for replica in replicas[1:]:
        leaves, gradients = [], []
        for target, source in zip(first.parameters(), replica.parameters()):
            if source.grad is not None:
                leaves.append(target)
                gradients.append(source.grad.detach().to(target.device, copy=True))
        if leaves:
            torch.autograd.backward(leaves, gradients)
