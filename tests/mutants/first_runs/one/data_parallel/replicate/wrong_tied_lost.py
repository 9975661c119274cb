# wrong: makes a new Parameter for every place in every submodule, so tied weights come apart
import copy

from torch import nn


def replicate(module, devices):
    module.to(devices[0])
    replicas = [module]
    for device in devices[1:]:
        replica = copy.deepcopy(module)
        for sub in replica.modules():
            for name, p in sub._parameters.items():
                if p is not None:
                    sub._parameters[name] = nn.Parameter(
                        p.detach().to(device), requires_grad=p.requires_grad
                    )
            for name, b in sub._buffers.items():
                if b is not None:
                    sub._buffers[name] = b.to(device)
        replicas.append(replica)
    return replicas
