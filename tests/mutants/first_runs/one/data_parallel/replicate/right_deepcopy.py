# right: move the module, then deepcopy it once per further GPU
import copy


def replicate(module, devices):
    module.to(devices[0])
    replicas = [module]
    for device in devices[1:]:
        replicas.append(copy.deepcopy(module).to(device))
    return replicas
