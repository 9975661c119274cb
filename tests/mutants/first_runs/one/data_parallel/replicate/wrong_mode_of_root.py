# wrong: sets train/eval mode from the root, so a submodule in another mode (frozen batch norm) loses it
import copy


def replicate(module, devices):
    replicas = [module.to(devices[0])]
    for device in devices[1:]:
        replica = copy.deepcopy(module).to(device)
        replica.train(module.training)
        replicas.append(replica)
    return replicas
