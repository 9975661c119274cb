# right: walks the module trees side by side and assigns with [...] under a no_grad decorator
from collections.abc import Sequence

import torch
from torch import nn


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
