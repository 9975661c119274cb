"""How a virtual tensor is written: as PyTorch writes a CUDA tensor."""

from __future__ import annotations

from typing import Any

import torch
import torch._tensor_str

from multigpu.gpus.tensor import VirtualTensor

_tensor_str: Any = torch._tensor_str


def text_of(tensor: VirtualTensor) -> str:
    """The text of `repr(tensor)`, with device='cuda:1' in it. Printing is not metered."""
    from multigpu.gpus.interception import with_operators

    with torch._C.DisableTorchFunction(), torch.no_grad():
        data = tensor._data
        numbers = None
        if data.layout is torch.strided and data.numel() and not data.is_meta:
            numbers = _tensor_str._tensor_str(data, len("tensor("))
        text: str = with_operators(_tensor_str._str_intern, (tensor,), {"tensor_contents": numbers})
    if not isinstance(tensor, torch.nn.Parameter):
        return text.replace("Tensor(", "tensor(", 1)
    # PyTorch writes "Parameter(Tensor(...))" for subclasses.
    inner = text.removeprefix("Parameter(").removesuffix(")")
    return "Parameter containing:\n" + inner.replace("Tensor(", "tensor(", 1)
