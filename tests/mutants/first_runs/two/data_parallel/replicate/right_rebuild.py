# right: deepcopy on the spot, then exchange the tensors in every submodule's own dictionaries
import copy
from collections.abc import Sequence

import torch
from torch import nn


def _moved(module: nn.Module, device: torch.device) -> nn.Module:
    clone = copy.deepcopy(module)
    seen: dict[int, torch.Tensor] = {}
    keep = []  # old tensors stay alive, so that no id is used again
    for part in clone.modules():
        for name, parameter in part._parameters.items():
            if parameter is None:
                continue
            keep.append(parameter)
            if id(parameter) not in seen:
                seen[id(parameter)] = nn.Parameter(
                    parameter.detach().clone().to(device), parameter.requires_grad
                )
            part._parameters[name] = seen[id(parameter)]
        for name, buffer in part._buffers.items():
            if buffer is None:
                continue
            keep.append(buffer)
            if id(buffer) not in seen:
                seen[id(buffer)] = buffer.clone().to(device)
            part._buffers[name] = seen[id(buffer)]
    return clone


def replicate(module: nn.Module, devices: Sequence[torch.device]) -> list[nn.Module]:
    first, *others = devices
    return [module.to(first), *(_moved(module, device) for device in others)]
