"""Answers to ``replicate``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import copy
import io
import pickle

import torch
from harness import right, wrong
from torch import nn


@wrong("replicate.fresh_weights")
def fresh_initialisation(module, devices):
    module.to(devices[0])
    replicas = [module]
    for device in devices[1:]:
        replica = copy.deepcopy(module)
        for layer in replica.modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        replicas.append(replica.to(device))
    return replicas


@wrong("wrong_values")
def initialises_the_original_again(module, devices):
    module.to(devices[0])
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    return [module] + [copy.deepcopy(module).to(device) for device in devices[1:]]


@wrong("returned_nothing")
def forgets_to_return(module, devices):
    [copy.deepcopy(module).to(device) for device in devices]


@wrong("wrong_type")
def returns_the_module(module, devices):
    return module.to(devices[0])


@right
def a_loop_with_cuda(module, devices):
    replicas = []
    for i, device in enumerate(devices):
        replica = module if i == 0 else copy.deepcopy(replicas[0])
        replicas.append(replica.cuda(device))
    return replicas


@right
def through_a_file_in_memory(module, devices):
    module.to(devices[0])
    replicas = [module]
    for device in devices[1:]:
        replica = copy.deepcopy(module)
        file = io.BytesIO()
        torch.save(module.state_dict(), file)
        file.seek(0)
        replica.load_state_dict(torch.load(file))
        replicas.append(replica.to(device))
    return replicas


@right
def rebuilds_every_layer(module, devices):
    def rebuild(layer, device, memo):
        if id(layer) in memo:
            return memo[id(layer)]
        new = memo[id(layer)] = layer.__class__.__new__(layer.__class__)
        new.__dict__ = {
            key: value.copy() if isinstance(value, (dict, set, list)) else value
            for key, value in layer.__dict__.items()
        }
        for name, value in layer._parameters.items():
            if value is not None:
                if id(value) not in memo:
                    moved = value.detach().clone().to(device)
                    memo[id(value)] = nn.Parameter(moved, requires_grad=value.requires_grad)
                new._parameters[name] = memo[id(value)]
        for name, value in layer._buffers.items():
            new._buffers[name] = None if value is None else value.clone().to(device)
        for name, child in layer._modules.items():
            new._modules[name] = rebuild(child, device, memo)
        return new

    module.to(devices[0])
    return [module] + [rebuild(module, device, {}) for device in devices[1:]]


@right
def pickles_the_whole_module(module, devices):
    packed = pickle.dumps(module.cpu())
    copies = [pickle.loads(packed) for _ in devices[1:]]
    return [model.to(device) for model, device in zip([module, *copies], devices)]
