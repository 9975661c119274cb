"""States of models and optimizers between a rank's shares and the whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map


def whole(state: dict[str, Any]) -> dict[str, Any]:
    """`state` with every divided tensor put together, on the CPU. Every rank calls it.

    One tensor after the other, so that no GPU ever holds the whole model.
    """
    return {key: _whole(value) for key, value in state.items()}


def _whole(value: Any) -> Any:
    return tree_map(
        lambda leaf: leaf.full_tensor().cpu() if isinstance(leaf, DTensor) else leaf, value
    )


def divided_as(there: Any, value: Any) -> Any:
    """This rank's share of a whole `value`, divided as the tensor `there` is; nothing is sent."""
    if not isinstance(there, DTensor) or not isinstance(value, Tensor):
        return value
    if isinstance(value, DTensor):
        return value
    return distribute_tensor(
        value.to(there.device), there.device_mesh, there.placements, src_data_rank=None
    )


def divided_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """A whole optimizer's state with this rank's share of what belongs to divided parameters."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    divided = {
        number: {
            name: divided_as(parameters[number], value)
            if number < len(parameters) and same_shape(parameters[number], value)
            else value
            for name, value in values.items()
        }
        for number, values in state["state"].items()
    }
    return {**state, "state": divided}


def same_shape(parameter: Tensor, value: Any) -> bool:
    """Whether a value of the optimizer's state is one number for each of the parameter's."""
    return isinstance(value, Tensor) and value.shape == parameter.shape
