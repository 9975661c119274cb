# wrong: every place gets a parameter of its own, so tied weights are no longer tied
import copy
from collections.abc import Sequence

import torch
from torch import nn


def replicate(module: nn.Module, devices: Sequence[torch.device]) -> list[nn.Module]:
    module.to(devices[0])
    replicas = [module]
    for device in devices[1:]:
        replica = copy.deepcopy(module)
        for part in replica.modules():
            for name, parameter in list(part.named_parameters(recurse=False)):
                new = nn.Parameter(parameter.detach().to(device), parameter.requires_grad)
                setattr(part, name, new)
            for name, buffer in list(part.named_buffers(recurse=False)):
                setattr(part, name, buffer.to(device))
        replicas.append(replica)
    return replicas
