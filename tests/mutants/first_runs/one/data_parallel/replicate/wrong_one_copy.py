# wrong: only one copy is made and moved on and on, right for two GPUs, from three on the replicas are the same object
import copy


def replicate(module, devices):
    module = module.to(devices[0])
    clone = copy.deepcopy(module)
    return [module] + [clone.to(device) for device in devices[1:]]
