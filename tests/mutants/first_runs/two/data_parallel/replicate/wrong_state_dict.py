# wrong: the values come from state_dict, which leaves out the non-persistent buffers
import copy
from collections.abc import Sequence

import torch
from torch import nn


def replicate(module: nn.Module, devices: Sequence[torch.device]) -> list[nn.Module]:
    module.to(devices[0])
    state = module.state_dict()
    replicas = [module]
    for device in devices[1:]:
        replica = copy.deepcopy(module)
        replica._apply(lambda tensor: torch.zeros_like(tensor, device=device))
        replica.load_state_dict(state)
        replicas.append(replica)
    return replicas
