"""Values that lie on several ranks, together on rank 0: for a checkpoint that any mode can read."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from multigpu.training.agreement import everyones

Key = TypeVar("Key", bound=Hashable)


class Described(NamedTuple):
    """A tensor that another rank has."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def empty(self, device: torch.device | str) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=device)


def on_main_rank(mine: Mapping[Key, Any], *, device: torch.device) -> dict[Key, Any]:
    """What all ranks give, each under its own keys; every rank calls it.

    Rank 0 gets copies of the tensors on the CPU. The others get tensors of the same shapes on the
    device "meta", without values and without memory: a model that needs several GPUs need not fit
    into every process once more. Values that are no tensors come to every rank. One tensor at a
    time travels, on `device`.
    """
    whole: dict[Key, Any] = {}
    rank = dist.get_rank()
    for owner, table in enumerate(everyones({key: described(mine[key]) for key in mine})):
        for key, value in table.items():
            if not isinstance(value, Described):
                whole[key] = value
            elif rank == 0:
                whole[key] = received(mine, key, value, owner=owner, device=device)
            else:
                whole[key] = value.empty("meta")
                if rank == owner and whole[key].numel():
                    dist.send(mine[key].detach().to(device).contiguous(), dst=0)
    return whole


def received(
    mine: Mapping[Key, Any], key: Key, value: Described, *, owner: int, device: torch.device
) -> Tensor:
    """One tensor on rank 0: its own, or the one that `owner` sends."""
    if owner == 0:
        own: Tensor = mine[key].detach().to("cpu", copy=True)
        return own
    tensor = value.empty(device)
    if tensor.numel():
        dist.recv(tensor, src=owner)
    return tensor.cpu()


def described(value: Any) -> Any:
    """A tensor's shape and type; anything else as it is."""
    return Described(tuple(value.shape), value.dtype) if isinstance(value, Tensor) else value
