"""A check's drive and its arguments as bytes, on their way to the workers.

They are pickled by the judge, whom the workers trust; nothing of a learner's comes this way.
"""

import io
import os
import sys
import types
from collections.abc import Callable
from functools import cache
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy
import torch
from torch import Tensor, nn

NUMPY_KNOWS = (torch.float64, torch.float32, torch.int64, torch.int32, torch.uint8, torch.bool)


def by_value(drive: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """Drive and arguments as bytes, with every function of the check's own files inside."""
    _send_by_value(drive.__module__)
    file = io.BytesIO()
    Pickler(file).dump((drive, arguments))
    return file.getvalue()


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Sends a tensor as its bytes.

    Torch's own way writes a file for each, which takes every worker a tenth of a millisecond to
    read; a check sends a hundred.
    """

    def reducer_override(self, obj: Any) -> Any:
        """How to make ``obj`` again; what is no plain tensor is left to others."""
        if type(obj) in (Tensor, nn.Parameter) and is_plain(obj):
            values = obj.detach().numpy().tobytes()
            known = (tuple(obj.shape), obj.dtype, obj.requires_grad, type(obj) is nn.Parameter)
            return rebuilt, (values, *known)
        return super().reducer_override(obj)


def is_plain(tensor: Tensor) -> bool:
    """Whether shape, type and values are all there is to tell: a leaf on the CPU, no view."""
    return (
        tensor.dtype in NUMPY_KNOWS
        and tensor.layout == torch.strided
        and tensor.is_cpu
        and tensor.is_leaf
        and tensor.is_contiguous()
        and tensor.untyped_storage().nbytes() == tensor.nbytes
        and not vars(tensor)
        and not tensor._backward_hooks
    )


def rebuilt(
    values: bytes, shape: tuple[int, ...], dtype: torch.dtype, requires_grad: bool, parameter: bool
) -> Tensor:
    """The tensor that these bytes came from, in a storage of its own."""
    tensor = torch.empty(shape, dtype=dtype, device="cpu")
    array = tensor.numpy()
    array[...] = numpy.frombuffer(values, array.dtype).reshape(shape)
    if parameter:
        return nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


@cache
def _send_by_value(name: str) -> None:
    """Have cloudpickle copy what the check's file, and those beside it, define."""
    folder = _folder(sys.modules[name])
    if not folder:  # a notebook or a command line, which cloudpickle copies anyway
        return
    known = [m for m in list(sys.modules.values()) if m is not None]  # None: kept out
    beside = {m.__name__: m for m in known if _folder(m) == folder}
    for module in beside.values():
        cloudpickle.register_pickle_by_value(module)


def _folder(module: types.ModuleType) -> str:
    """The folder of a module's file; the module itself is not asked: it may be a lazy one.

    Some libraries put objects among the modules that are none and have no ``__dict__``.
    """
    return os.path.dirname(getattr(module, "__dict__", {}).get("__file__") or "")
