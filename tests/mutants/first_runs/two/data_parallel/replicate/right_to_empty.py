# right: structure by deepcopy and to_empty, numbers by copy_ afterwards, one thread per replica
import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import torch
from torch import nn


def _tensors(module: nn.Module):
    return chain(
        module.named_parameters(remove_duplicate=False),
        module.named_buffers(remove_duplicate=False),
    )


def replicate(module: nn.Module, devices: Sequence[torch.device]) -> list[nn.Module]:
    devices = list(devices)
    module = module.to(devices[0])
    copies = [copy.deepcopy(module) for _ in devices[1:]]

    def fill(pair):
        clone, device = pair
        clone.to_empty(device=device)
        with torch.no_grad():
            for (_, target), (_, source) in zip(_tensors(clone), _tensors(module), strict=True):
                target.copy_(source)
        return clone

    if not copies:
        return [module]
    with ThreadPoolExecutor(len(copies)) as pool:
        return [module, *pool.map(fill, zip(copies, devices[1:]))]
