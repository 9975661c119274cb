"""Answers to ``replicate`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import copy
import io
import pickle
import torch
from concurrent.futures import ThreadPoolExecutor
from itertools import chain


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


# %% pickles_the_whole_module: pass
def replicate(module, devices):
    packed = pickle.dumps(module.cpu())
    copies = [pickle.loads(packed) for _ in devices[1:]]
    return [model.to(device) for model, device in zip([module, *copies], devices)]


# %% to_empty_in_threads: pass
def _tensors(module):
    return chain(
        module.named_parameters(remove_duplicate=False),
        module.named_buffers(remove_duplicate=False),
    )


def replicate(module, devices):
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


# %% returns_the_module: wrong wrong_type
def replicate(module, devices):
    return module.to(devices[0])


# %% returns_state_dicts: wrong wrong_value
def replicate(module, devices):
    module.to(devices[0])
    return [module] + [module.state_dict() for _ in devices[1:]]


# %% lets_autograd_record_the_copy: wrong wrong_value
def replicate(module, devices):
    replicas = [module.to(devices[0])]
    for device in devices[1:]:
        replicas.append(copy.deepcopy(module).to(device))
        for layer, original in zip(replicas[-1].modules(), module.modules()):
            for name, parameter in original.named_parameters(recurse=False):
                layer._parameters[name] = parameter.to(device)
    return replicas
