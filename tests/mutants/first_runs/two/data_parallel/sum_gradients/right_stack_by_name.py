# right: look parameters up by name and sum a stack of all gradients that are there
from collections.abc import Sequence

import torch
from torch import nn


def sum_gradients(replicas: Sequence[nn.Module]) -> None:
    for name, parameter in replicas[0].named_parameters():
        gradients = [
            grad.detach().to(parameter.device)
            for replica in replicas
            if (grad := replica.get_parameter(name).grad) is not None
        ]
        parameter.grad = torch.stack(gradients).sum(dim=0) if gradients else None
