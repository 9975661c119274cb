# right: fill deepcopy's memo with tensors built on the target GPU, so nothing is copied twice
import copy

from torch import nn


def replicate(module, devices):
    def clone_on(device):
        memo = {}
        for p in module.parameters():
            data = p.detach().to(device, copy=True)
            memo[id(p)] = nn.Parameter(data, requires_grad=p.requires_grad)
        for b in module.buffers():
            memo[id(b)] = b.detach().to(device, copy=True)
        return copy.deepcopy(module, memo)

    first, *others = devices
    module = module.to(first)
    return [module] + [clone_on(device) for device in others]
