"""What stands in the arguments of a process group's methods: tensors in lists, and options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from multigpu.ranks.work import Copies


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors in nested lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def replaced(value: Any, copies: Copies) -> Any:
    """Nested lists with copies in the place of tensors."""
    if isinstance(value, torch.Tensor):
        return copies.of(value)
    if isinstance(value, list | tuple):
        return type(value)(replaced(item, copies) for item in value)
    return value


def options_in(values: Sequence[Any]) -> Any:
    """The options among the arguments of a call: "AllreduceOptions" and the like."""
    return next((v for v in values if type(v).__name__.endswith("Options")), None)


def reduction_of(options: Any) -> str:
    """ "sum", "max", …; without options it is a sum, as in torch."""
    if options is None:
        return "sum"
    kind = getattr(options.reduceOp, "op", options.reduceOp)  # ReduceOp itself has no readable text
    return str(kind).rpartition(".")[2].partition(":")[0].strip("<> ").lower()
