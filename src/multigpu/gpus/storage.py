"""Storages of virtual tensors, and with them `torch.save` and `torch.load`.

A saved virtual tensor is saved as the CUDA tensor it stands for, so that checkpoints go both ways
between virtual and real GPUs. PyTorch does that by itself once a storage says where it is and can
be asked for a copy elsewhere.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from multigpu.gpus import copies
from multigpu.gpus.devices import core_device, gpu_of, named
from multigpu.gpus.gpu import Gpu
from multigpu.gpus.operators import run_plainly
from multigpu.gpus.patches import Patches
from multigpu.gpus.plans import Plan, special
from multigpu.gpus.tensor import OWN_ATTRIBUTES, VirtualTensor

# Untyped in PyTorch's own annotations.
_Storage: Any = torch.UntypedStorage
_TypedStorage: Any = torch.storage.TypedStorage
_saving: Any = torch._utils


class VirtualStorage(torch.UntypedStorage):
    """The storage of a tensor on a virtual GPU."""

    _gpu: Gpu

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._gpu.device

    @property
    def is_cuda(self) -> bool:
        return True

    def cpu(self) -> torch.UntypedStorage:
        copies.note(self._gpu, None, self.nbytes())
        return _Storage(self.nbytes()).copy_(self, False)  # type: ignore[no-any-return]

    def clone(self) -> VirtualStorage:
        return on_gpu(self._data_again(), self._gpu)

    def __deepcopy__(self, memo: dict[Any, Any]) -> torch.UntypedStorage:
        """For the data of a copied tensor: a plain storage, shared where this one is shared."""
        copied = memo.setdefault("torch", {})
        if self._cdata not in copied:
            copied[self._cdata] = self._data_again()
        return copied[self._cdata]  # type: ignore[no-any-return]

    def _data_again(self) -> Any:
        return _Storage(self.nbytes(), device=self._gpu.backing).copy_(self, False)

    def resize_(self, size: int) -> VirtualStorage:
        super().resize_(size)
        self._gpu.hold_storage(self)
        return self


def on_gpu(storage: torch.UntypedStorage, gpu: Gpu) -> VirtualStorage:
    """`storage` as one that says it is on `gpu`: the same object, so that sharing stays visible."""
    storage.__class__ = VirtualStorage
    assert isinstance(storage, VirtualStorage)
    storage._gpu = gpu
    return storage


def install(patches: Patches) -> None:
    """Let every storage be copied to a virtual GPU."""
    plain_to = torch.UntypedStorage.to

    def to(storage: Any, *, device: Any, non_blocking: bool = False) -> torch.UntypedStorage:
        device = named(device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if device == storage.device:
            return storage  # type: ignore[no-any-return]
        if device.type == "cpu":
            return storage.cpu()  # type: ignore[no-any-return]
        gpu = gpu_of(core_device(device))
        if gpu is None:
            return plain_to(storage, device=device, non_blocking=non_blocking)  # type: ignore[no-any-return]
        copy = _Storage(storage.nbytes(), device=gpu.backing).copy_(storage, False)
        copies.note(getattr(storage, "_gpu", None), gpu, storage.nbytes())
        return on_gpu(copy, gpu)

    patches.set(torch.UntypedStorage, "to", to)
    patches.wrap(torch._utils, "set_tensor_metadata", _on_data_too)


def _on_data_too(set_marks: Any) -> Any:
    """A loaded tensor's marks of lazy conjugation and negation, set on shell and data."""

    def set_both(tensor: torch.Tensor, marks: dict[str, bool]) -> None:
        set_marks(tensor, marks)
        if isinstance(tensor, VirtualTensor):
            set_marks(tensor._data, marks)

    return set_both


@special("set_")
def set_(plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`tensor.set_(storage, offset, size, stride)`, which `torch.load` ends in."""
    tensor, *rest = args
    source = rest[0] if rest else None
    if isinstance(source, torch.UntypedStorage) and source.device != tensor.device:
        raise RuntimeError(
            f'Attempted to set the storage of a tensor on device "{tensor.device}" to a storage '
            f'on different device "{source.device}".  This is no longer allowed; the devices '
            "must match."
        )
    return run_plainly(plan, args, kwargs)


def reduce(tensor: VirtualTensor) -> tuple[Any, ...]:
    """How a virtual tensor is pickled: as the CUDA tensor it stands for."""
    attributes = {
        name: value for name, value in tensor.__dict__.items() if name not in OWN_ATTRIBUTES
    }
    hooks: OrderedDict[int, Any] = OrderedDict()  # PyTorch does not save hooks either
    if isinstance(tensor, torch.nn.Parameter):
        parts = (tensor.data, tensor.requires_grad, hooks)
        if attributes:
            return torch._utils._rebuild_parameter_with_state, (*parts, attributes)
        return torch._utils._rebuild_parameter, parts
    if tensor.is_sparse:
        contents = (tensor._indices(), tensor._values(), tensor.size(), tensor.is_coalesced())
        return torch._utils._rebuild_sparse_tensor, (tensor.layout, contents)
    typed = _TypedStorage(wrap_storage=tensor.untyped_storage(), dtype=tensor.dtype, _internal=True)
    view = (typed, tensor.storage_offset(), tuple(tensor.size()), tensor.stride())
    marks = _saving.get_tensor_metadata(tensor)
    return torch._utils._rebuild_tensor_v2, (*view, tensor.requires_grad, hooks, marks)
