"""Answers to ``replicate``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import copy
import io
import pickle

import torch
from harness import right, wrong
from torch import nn


@wrong("replicate.same_object")
def moves_one_model_around(module, devices):
    return [module.to(device) for device in devices]


@wrong("replicate.same_object")
def multiplies_the_list(module, devices):
    return [module.to(devices[0])] * len(devices)


@wrong("replicate.first_is_a_copy")
def copies_the_first_too(module, devices):
    return [copy.deepcopy(module).to(device) for device in devices]


@wrong("replicate.first_not_moved")
def leaves_the_first_where_it_is(module, devices):
    return [module] + [copy.deepcopy(module).to(device) for device in devices[1:]]


@wrong("replicate.left_on_first_gpu")
def forgets_to_move_the_copies(module, devices):
    module.to(devices[0])
    return [module] + [copy.deepcopy(module) for _ in devices[1:]]


@wrong("replicate.counts_gpus_itself")
def ignores_the_order_of_devices(module, devices):
    module.to("cuda:0")
    return [module] + [copy.deepcopy(module).to(f"cuda:{i}") for i in range(1, len(devices))]


@wrong("replicate.shared")
def shallow_copies(module, devices):
    module.to(devices[0])
    return [module] + [copy.copy(module) for _ in devices[1:]]


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


@wrong("replicate.fresh_weights")
def builds_new_models_of_the_class(module, devices):
    return [module.to(devices[0])] + [type(module)().to(device) for device in devices[1:]]


@wrong("replicate.non_persistent_lost")
def new_model_with_the_state_dict(module, devices):
    module.to(devices[0])
    replicas = [module]
    for device in devices[1:]:
        replica = copy.deepcopy(module)
        for layer in replica.modules():
            for name in layer._non_persistent_buffers_set:
                setattr(layer, name, torch.zeros_like(getattr(layer, name)))
        replica.load_state_dict(module.state_dict())
        replicas.append(replica.to(device))
    return replicas


@wrong("replicate.buffers_left_behind")
def moves_parameters_only(module, devices):
    module.to(devices[0])
    replicas = [module]
    for device in devices[1:]:
        replica = copy.deepcopy(module)
        for layer in replica.modules():
            for name, parameter in layer._parameters.items():
                if parameter is not None:
                    moved = parameter.detach().to(device)
                    layer._parameters[name] = nn.Parameter(moved, parameter.requires_grad)
        replicas.append(replica)
    return replicas


@wrong("replicate.buffers_missing")
def strips_the_buffers(module, devices):
    module.to(devices[0])
    replicas = [module]
    for device in devices[1:]:
        replica = copy.deepcopy(module).to(device)
        for layer in replica.modules():
            layer._buffers.clear()
        replicas.append(replica)
    return replicas


@wrong("replicate.buffers_reset")
def resets_running_statistics(module, devices):
    module.to(devices[0])
    replicas = [module]
    for device in devices[1:]:
        replica = copy.deepcopy(module).to(device)
        for layer in replica.modules():
            for name in layer._buffers:
                if name == "running_mean":
                    layer._buffers[name].zero_()
        replicas.append(replica)
    return replicas


@wrong("replicate.untied")
def copies_layer_by_layer(module, devices):
    module.to(devices[0])
    replicas = [module]
    for device in devices[1:]:
        replica = copy.deepcopy(module)
        for layer in replica.modules():
            for name, parameter in list(layer._parameters.items()):
                if parameter is not None:
                    own = parameter.detach().clone()
                    layer._parameters[name] = nn.Parameter(own, parameter.requires_grad)
        replicas.append(replica.to(device))
    return replicas


@wrong("replicate.mode_lost")
def everything_into_train_mode(module, devices):
    copies = [copy.deepcopy(module).to(device).train() for device in devices[1:]]
    return [module.to(devices[0])] + copies


@wrong("replicate.mode_lost")
def the_copies_into_eval_mode(module, devices):
    copies = [copy.deepcopy(module).to(device).eval() for device in devices[1:]]
    return [module.to(devices[0])] + copies


@wrong("replicate.requires_grad_lost")
def thaws_frozen_layers(module, devices):
    copies = [copy.deepcopy(module).to(device).requires_grad_() for device in devices[1:]]
    return [module.to(devices[0])] + copies


@wrong("replicate.requires_grad_lost")
def freezes_the_copies(module, devices):
    copies = [copy.deepcopy(module).to(device).requires_grad_(False) for device in devices[1:]]
    return [module.to(devices[0])] + copies


@wrong("replicate.dtype_changed")
def turns_double_into_float(module, devices):
    copies = [copy.deepcopy(module).float().to(device) for device in devices[1:]]
    return [module.to(devices[0])] + copies


@wrong("replicate.no_parameters")
def like_data_parallel_with_plain_tensors(module, devices):
    module.to(devices[0])
    replicas = [module]
    for device in devices[1:]:
        replica = copy.deepcopy(module).to(device)
        for layer in replica.modules():
            for name, parameter in list(layer._parameters.items()):
                del layer._parameters[name]
                if parameter is not None:
                    object.__setattr__(layer, name, parameter.detach())
        replicas.append(replica)
    return replicas


@wrong("replicate.count")
def only_the_copies(module, devices):
    return [copy.deepcopy(module).to(device) for device in devices[1:]] or [module]


@wrong("replicate.original_changed")
def initialises_the_original_again(module, devices):
    module.to(devices[0])
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    return [module] + [copy.deepcopy(module).to(device) for device in devices[1:]]


@wrong("replicate.returned_nothing")
def forgets_to_return(module, devices):
    [copy.deepcopy(module).to(device) for device in devices]


@wrong("replicate.not_modules")
def returns_state_dicts(module, devices):
    module.to(devices[0])
    return [module] + [module.state_dict() for _ in devices[1:]]


@wrong("replicate.not_a_list")
def returns_the_module(module, devices):
    return module.to(devices[0])


@wrong("replicate.wrong_gpu")
def copies_to_the_gpus_in_reverse(module, devices):
    module.to(devices[0])
    return [module] + [copy.deepcopy(module).to(device) for device in reversed(devices[1:])]


@wrong("replicate.left_on_cpu")
def never_moves_the_copies(module, devices):
    copies = [copy.deepcopy(module).cpu() for _ in devices[1:]]
    return [module.to(devices[0])] + copies


@wrong("replicate.not_trainable")
def autograd_records_the_copy(module, devices):
    module.to(devices[0])
    replicas = [module]
    for device in devices[1:]:
        replica = copy.deepcopy(module).to(device)
        for (_, layer), (_, original) in zip(replica.named_modules(), module.named_modules()):
            for name, parameter in original._parameters.items():
                if parameter is not None:
                    layer._parameters[name] = parameter.to(device)
        replicas.append(replica)
    return replicas


@wrong("replicate.count")
def one_copy_too_many(module, devices):
    module.to(devices[0])
    return [module] + [copy.deepcopy(module).to(device) for device in devices]


@right
def copies_on_the_cpu_first(module, devices):
    copies = [copy.deepcopy(module) for _ in devices[1:]]
    return [model.to(device) for model, device in zip([module, *copies], devices)]


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
def deepcopy_with_a_memo(module, devices):
    module.to(devices[0])
    replicas = [module]
    for device in devices[1:]:
        memo = {}
        for value in module.parameters():
            memo[id(value)] = nn.Parameter(value.detach().to(device), value.requires_grad)
        for value in module.buffers():
            memo[id(value)] = value.detach().to(device)
        replicas.append(copy.deepcopy(module, memo))
    return tuple(replicas)


@right
def pickles_the_whole_module(module, devices):
    packed = pickle.dumps(module.cpu())
    copies = [pickle.loads(packed) for _ in devices[1:]]
    return [model.to(device) for model, device in zip([module, *copies], devices)]
