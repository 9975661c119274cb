"""Weights that a model uses in several places, when the places come to lie in different stages.

Each stage that uses the weight has a copy, and each copy gets the gradient of its own use. Added
up over the ranks that have one, they are the gradient that the one weight would have got, so all
copies take the same step and stay alike. PyTorch's and Megatron's pipelines do the same with the
embedding of a GPT, which is also the matrix of its last layer.
(Shoeybi et al. 2019, arXiv:1909.08053; megatron/core/distributed/finalize_model_grads.py)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

Names = dict[str, str]  # a parameter's or buffer's name -> the first name of the same tensor


def first_names(model: nn.Module) -> Names:
    """For every name of a tensor of `model`, the first one that this tensor has."""
    first: dict[int, str] = {}
    parameters = model.named_parameters(remove_duplicate=False)
    buffers = model.named_buffers(remove_duplicate=False)
    return {name: first.setdefault(id(tensor), name) for name, tensor in (*parameters, *buffers)}


def share_within(stages: Sequence[nn.Module], names: Names) -> None:
    """Let copies on this rank be one parameter again: autograd then adds up by itself."""
    seen: dict[str, nn.Parameter] = {}
    for stage in stages:
        for name, parameter in list(stage.named_parameters(remove_duplicate=False)):
            one = seen.setdefault(names.get(name, name), parameter)
            if one is not parameter:
                owner, _, last = name.rpartition(".")
                setattr(stage.get_submodule(owner), last, one)


def holders(stages: Sequence[nn.Module], names: Names, *, ranks: int) -> dict[str, list[int]]:
    """The ranks that have each parameter or buffer, by its first name; the first one owns it.

    `stages` are all stages, of which stage i lies on rank i modulo `ranks`.
    """
    found: dict[str, list[int]] = {}
    for number, stage in enumerate(stages):
        tensors = (*stage.named_parameters(remove_duplicate=False), *stage.named_buffers())
        for name, _ in tensors:
            if name in names:
                ranks_so_far = found.setdefault(names[name], [])
                if number % ranks not in ranks_so_far:
                    ranks_so_far.append(number % ranks)
    return found


class Tied:
    """This rank's copies of weights that other ranks have, too. Every rank makes one."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], holders: Mapping[str, list[int]]
    ) -> None:
        """`parameters`: this rank's, by their first names; `holders`: who has each of them."""
        groups: dict[tuple[int, ...], Any] = {}
        self.copies: list[tuple[nn.Parameter, Any]] = []
        for name, ranks in holders.items():
            among = tuple(sorted(ranks))
            if len(among) < 2:
                continue
            if among not in groups:  # all ranks make all groups, in the same order
                groups[among] = dist.new_group(list(among))
            if name in parameters and parameters[name].requires_grad:
                self.copies.append((parameters[name], groups[among]))

    def add_up_gradients(self) -> None:
        """Give every copy the sum of all copies' gradients."""
        for parameter, group in self.copies:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)
