"""Answers to ``broadcast`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import itertools
import torch
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from torch import nn

# %% state_dict_and_the_rest: pass


def broadcast(replicas):
    main = replicas[0]
    for replica in replicas[1:]:
        replica.load_state_dict(main.state_dict())
        buffers = dict(replica.named_buffers())
        for name, buffer in main.named_buffers():
            buffers[name].copy_(buffer)


# %% through_detached_views: pass


def broadcast(replicas):
    def everything(replica):
        named = itertools.chain(replica.named_parameters(), replica.named_buffers())
        return {name: tensor.detach() for name, tensor in named}

    source = everything(replicas[0])
    for replica in replicas[1:]:
        for name, target in everything(replica).items():
            target.copy_(source[name], non_blocking=True)


# %% zero_and_add: pass


def broadcast(replicas):
    with torch.no_grad():
        for replica in replicas[1:]:
            for target, source in zip(
                [*replica.parameters(), *replica.buffers()],
                [*replicas[0].parameters(), *replicas[0].buffers()],
            ):
                target.zero_().add_(source.to(target.device))


# %% in_inference_mode: pass


def broadcast(replicas):
    with torch.inference_mode():
        for replica in replicas[1:]:
            for target, source in zip(replica.parameters(), replicas[0].parameters()):
                target.copy_(source)
            for target, source in zip(replica.buffers(), replicas[0].buffers()):
                target.copy_(source)


# %% all_at_once: pass


def broadcast(replicas):
    source = [t.detach() for t in itertools.chain(replicas[0].parameters(), replicas[0].buffers())]
    for replica in replicas[1:]:
        target = [t.detach() for t in itertools.chain(replica.parameters(), replica.buffers())]
        torch._foreach_copy_(target, [tensor.to(target[0].device) for tensor in source])


# %% one_by_name_detach: pass


# right: look every tensor up by name, copy through detach()
def broadcast(replicas):
    first, *rest = [
        {**dict(replica.named_parameters()), **dict(replica.named_buffers())}
        for replica in replicas
    ]
    for name, value in first.items():
        for tensors in rest:
            tensors[name].detach().copy_(value.detach())


# %% one_zip_copy: pass

# right: no_grad and copy_ over zipped parameters and buffers


def broadcast(replicas):
    source = replicas[0]
    with torch.no_grad():
        for replica in replicas[1:]:
            for p, q in zip(source.parameters(), replica.parameters()):
                q.copy_(p)
            for b, c in zip(source.buffers(), replica.buffers()):
                c.copy_(b)


# %% two_bucket: pass

# right: one flat bucket per dtype travels to each GPU, its pieces are copied into place there


def _groups(module: nn.Module) -> dict:
    groups = defaultdict(list)
    for _, tensor in module.named_parameters():
        groups[tensor.dtype].append(tensor.data)
    for _, tensor in module.named_buffers(remove_duplicate=False):
        groups[tensor.dtype].append(tensor.data)
    return groups


def broadcast(replicas: Sequence[nn.Module]) -> None:
    buckets = {
        dtype: torch.cat([tensor.reshape(-1) for tensor in tensors])
        for dtype, tensors in _groups(replicas[0]).items()
    }
    for replica in replicas[1:]:
        for dtype, tensors in _groups(replica).items():
            bucket = buckets[dtype].to(tensors[0].device)
            offset = 0
            for tensor in tensors:
                piece = bucket[offset : offset + tensor.numel()]
                tensor.copy_(piece.view(tensor.shape))
                offset += tensor.numel()


# %% two_threads_detach: pass

# right: one thread per replica; detach() shares the memory, so copy_ needs no no_grad


def _tensors(module: nn.Module) -> list:
    parameters = module.named_parameters(remove_duplicate=False)
    buffers = module.named_buffers(remove_duplicate=False)
    return [tensor.detach() for _, tensor in chain(parameters, buffers)]


def broadcast(replicas: Sequence[nn.Module]) -> None:
    source = _tensors(replicas[0])

    def update(replica: nn.Module) -> None:
        for target, values in zip(_tensors(replica), source, strict=True):
            target.copy_(values)

    with ThreadPoolExecutor(max_workers=len(replicas)) as pool:
        list(pool.map(update, replicas[1:]))


# %% two_walk: pass

# right: walks the module trees side by side and assigns with [...] under a no_grad decorator


@torch.no_grad()
def _copy_tree(source: nn.Module, target: nn.Module) -> None:
    for kind in ("_parameters", "_buffers"):
        ours, theirs = getattr(source, kind), getattr(target, kind)
        for name, tensor in ours.items():
            if tensor is not None:
                theirs[name][...] = tensor.to(theirs[name].device)
    for name, child in source.named_children():
        _copy_tree(child, getattr(target, name))


def broadcast(replicas: Sequence[nn.Module]) -> None:
    for replica in replicas[1:]:
        _copy_tree(replicas[0], replica)


# %% clears_all_before_it_copies: wrong wrong_values


def broadcast(replicas):
    with torch.no_grad():
        for replica in replicas:
            for parameter in replica.parameters():
                parameter.zero_()


# %% deletes_a_buffer: wrong missing


def broadcast(replicas):
    with torch.no_grad():
        for replica in replicas[1:]:
            for target, source in zip(replica.parameters(), replicas[0].parameters()):
                target.copy_(source)
            for target, source in zip(replica.buffers(), replicas[0].buffers()):
                target.copy_(source)
            del replica._buffers["position"]


# %% switches_gradients_off_for_good: wrong broadcast.grad_mode_changed


def broadcast(replicas):
    torch.set_grad_enabled(False)
    for replica in replicas[1:]:
        for target, source in zip(replica.parameters(), replicas[0].parameters()):
            target.copy_(source)
        for target, source in zip(replica.buffers(), replicas[0].buffers()):
            target.copy_(source)
