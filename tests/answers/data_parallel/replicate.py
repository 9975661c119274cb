"""Answers to ``replicate`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import copy
import io
import pickle
import torch
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from torch import nn

# %% a_loop_with_cuda: pass


def replicate(module, devices):
    replicas = []
    for i, device in enumerate(devices):
        replica = module if i == 0 else copy.deepcopy(replicas[0])
        replicas.append(replica.cuda(device))
    return replicas


# %% through_a_file_in_memory: pass


def replicate(module, devices):
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


# %% rebuilds_every_layer: pass


def replicate(module, devices):
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


# %% pickles_the_whole_module: pass


def replicate(module, devices):
    packed = pickle.dumps(module.cpu())
    copies = [pickle.loads(packed) for _ in devices[1:]]
    return [model.to(device) for model, device in zip([module, *copies], devices)]


# %% one_deepcopy: pass

# right: move the module, then deepcopy it once per further GPU


def replicate(module, devices):
    module.to(devices[0])
    replicas = [module]
    for device in devices[1:]:
        replicas.append(copy.deepcopy(module).to(device))
    return replicas


# %% one_memo: pass

# right: fill deepcopy's memo with tensors built on the target GPU, so nothing is copied twice


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


# %% two_memo: pass

# right: deepcopy with a prefilled memo, so parameters and buffers are made on the target GPU at once


def replicate(module: nn.Module, devices: Sequence[torch.device]) -> list[nn.Module]:
    module.to(devices[0])
    replicas = [module]
    for device in devices[1:]:
        memo = {}
        for parameter in module.parameters():
            values = parameter.detach().to(device, copy=True)
            memo[id(parameter)] = nn.Parameter(values, requires_grad=parameter.requires_grad)
        for buffer in module.buffers():
            memo[id(buffer)] = buffer.detach().to(device, copy=True)
        replicas.append(copy.deepcopy(module, memo))
    return replicas


# %% two_rebuild: pass

# right: deepcopy on the spot, then exchange the tensors in every submodule's own dictionaries


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


# %% two_to_empty: pass

# right: structure by deepcopy and to_empty, numbers by copy_ afterwards, one thread per replica


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


# %% initialises_the_original_again: wrong wrong_values


def replicate(module, devices):
    module.to(devices[0])
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    return [module] + [copy.deepcopy(module).to(device) for device in devices[1:]]


# %% forgets_to_return: wrong returned_nothing


def replicate(module, devices):
    [copy.deepcopy(module).to(device) for device in devices]


# %% returns_the_module: wrong wrong_type


def replicate(module, devices):
    return module.to(devices[0])
