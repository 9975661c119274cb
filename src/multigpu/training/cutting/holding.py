"""How a stage holds modules and tensors of the model: under the names that they have there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class Holder(nn.Module):
    """Stands for a module of the model of which the stage has a part."""


def hold_module(stage: nn.Module, model: nn.Module, name: str) -> None:
    """Hold a module of the model."""
    *path, last = name.split(".")
    _home(stage, path).add_module(last, model.get_submodule(name))


def hold_tensor(stage: nn.Module, model: nn.Module, name: str) -> None:
    """Hold a parameter, a buffer or a plain tensor of the model, if a module does not yet do so."""
    *path, last = name.split(".")
    source = model.get_submodule(".".join(path))
    home = _home(stage, path)
    if home is source or hasattr(home, last):
        return
    if last in source._parameters:
        home.register_parameter(last, source._parameters[last])
    else:
        persistent = last in source._buffers and last not in source._non_persistent_buffers_set
        value = torch.as_tensor(getattr(source, last))
        home.register_buffer(last, value, persistent=persistent)


def _home(stage: nn.Module, path: Sequence[str]) -> nn.Module:
    """The module at a path, made where it is missing."""
    home = stage
    for name in path:
        if name not in home._modules:
            home.add_module(name, Holder())
        home = home.get_submodule(name)
    return home
