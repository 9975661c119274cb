# wrong: "can be trained by itself" taken as requires_grad on everywhere, frozen parameters are thawed in the copies
import copy


def replicate(module, devices):
    replicas = [module.to(devices[0])]
    for device in devices[1:]:
        replica = copy.deepcopy(module).to(device)
        replica.requires_grad_()
        replicas.append(replica)
    return replicas
