# right: deepcopy with a prefilled memo, so parameters and buffers are made on the target GPU at once
import copy
from collections.abc import Sequence

import torch
from torch import nn


def replicate(module: nn.Module, devices: Sequence[torch.device]) -> list[nn.Module]:
    module.to(devices[0])
    replicas = [module]
    for device in devices[1:]:
        memo = {}
        for parameter in module.parameters():
            values = parameter.detach().to(device, copy=True)
            memo[id(parameter)] = nn.Parameter(values, requires_grad=parameter.requires_grad)
        for buffer in module.buffers():
            memo[id(buffer)] = buffer.detach().to(device, copy=True)
        replicas.append(copy.deepcopy(module, memo))
    return replicas
