# wrong: train(module.training) sets the mode of the top module in every submodule
import copy
from collections.abc import Sequence

import torch
from torch import nn


def replicate(module: nn.Module, devices: Sequence[torch.device]) -> list[nn.Module]:
    replicas = [module.to(devices[0])]
    for device in devices[1:]:
        replica = copy.deepcopy(module).to(device)
        replica.train(module.training)
        replicas.append(replica)
    return replicas
