# wrong: nn.Parameter(...) without requires_grad, so frozen parameters can be trained in the copies
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
            memo[id(parameter)] = nn.Parameter(parameter.detach().to(device, copy=True))
        for buffer in module.buffers():
            memo[id(buffer)] = buffer.to(device, copy=True)
        replicas.append(copy.deepcopy(module, memo))
    return replicas
