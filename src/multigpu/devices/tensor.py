"""A tensor on a virtual GPU: a shell that PyTorch computes with, around the real data.

The shell has shape, dtype, autograd history and the GPU's carrier device, but no data of its own.
Whatever PyTorch does with it comes through gate.py. An operator, which arrives there below
autograd, goes on to dispatch.py: the data are taken out, the operator runs on them, the results are
put into new shells on the same GPU.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterable
from typing import Any, ClassVar, NoReturn

import torch

from multigpu.devices import errors
from multigpu.devices.gpu import Gpu, core_device, gpu_of, named, note_copy, running

_Tensor: Any = torch.Tensor
_Storage: Any = torch.UntypedStorage
# The attributes that make a tensor a virtual one, beside those a user may set.
_OWN_ATTRIBUTES = frozenset({"_data", "_gpu", "_is_param"})


class VirtualTensor(torch.Tensor):
    """`data` (a plain tensor, without autograd) on `gpu`."""

    gate: ClassVar[Any]  # what all calls come through: a gate.Gate, which needs this class
    _data: torch.Tensor
    _gpu: Gpu

    @staticmethod
    def __new__(cls, data: torch.Tensor, gpu: Gpu) -> VirtualTensor:
        if torch.is_inference_mode_enabled() and not data.is_inference():
            # In inference mode, too, a view of an ordinary tensor is an ordinary tensor.
            with torch.inference_mode(False):
                return VirtualTensor(data, gpu)
        strided = data.layout is torch.strided
        if not strided and data.layout is not torch.sparse_coo:
            raise NotImplementedError(
                f"virtual GPUs hold dense and sparse_coo tensors, not {data.layout}"
            )
        shell: VirtualTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            data.shape,
            strides=data.stride(),
            storage_offset=data.storage_offset() if strided else None,
            dtype=data.dtype,
            layout=data.layout,
            device=gpu.carrier,
        )
        # Lazy conjugation and negation are marks on a tensor that the core must see.
        if data.is_conj():
            torch._C._set_conj(shell, True)
        if data.is_neg():
            torch._C._set_neg(shell, True)
        shell._data = data
        shell._gpu = gpu
        gpu.hold(data)
        return shell

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls.gate.handle(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if made_of_others(types):
            return NotImplemented  # the other class is asked next
        return cls.gate.__torch_dispatch__(func, types, args, kwargs)

    def put_back(self, data: torch.Tensor) -> None:
        """Hold `data`, after an operator has changed its shape or its storage."""
        torch.Tensor.data.__set__(self, VirtualTensor(data, self._gpu))  # type: ignore[attr-defined]
        self._data = data

    # Where it is

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._gpu.carrier if running.in_core else self._gpu.device

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def get_device(self) -> int:
        return self._gpu.index

    # Its bytes

    def data_ptr(self) -> int:
        return self._data.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return on_gpu(self._data.untyped_storage(), self._gpu)

    def share_memory_(self) -> VirtualTensor:
        return self  # as on CUDA, where memory is shared by handing on a handle

    def is_shared(self) -> bool:
        return True

    def record_stream(self, stream: Any) -> None:
        """Nothing to do: a virtual GPU finishes each operator before the next begins."""

    # Out of torch

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise errors.no_numpy(self._gpu.device)
        return self.detach().cpu().resolve_conj().resolve_neg().numpy()

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise errors.no_numpy(self._gpu.device)

    @property
    def __cuda_array_interface__(self) -> NoReturn:
        raise AttributeError("the data of a virtual GPU cannot be handed to other CUDA libraries")

    __dlpack__ = errors.no_dlpack

    def apply_(self, callable: Any) -> NoReturn:
        raise TypeError("apply_ is only implemented on CPU tensors")

    def __format__(self, format_spec: str) -> str:
        # PyTorch formats the number in a 0-dim tensor only if its class is exactly torch.Tensor.
        if self.dim() == 0:
            return format(self.item(), format_spec)
        return object.__format__(self, format_spec)

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        """As PyTorch writes a CUDA tensor, with device='cuda:1'. Printing is not metered."""
        with torch._C.DisableTorchFunction(), torch.no_grad():
            data, numbers = self._data, None
            if data.layout is torch.strided and data.numel() and not data.is_meta:
                found = re.match(r"tensor\((.*\]|[^,)]*)", repr(data), re.DOTALL)
                numbers = found and found[1]
            text: str = _Tensor.__repr__(self, tensor_contents=numbers)
        if not isinstance(self, torch.nn.Parameter):
            return text.replace("Tensor(", "tensor(", 1)
        # PyTorch writes "Parameter(Tensor(...))" for subclasses.
        inner = text.removeprefix("Parameter(").removesuffix(")")
        return "Parameter containing:\n" + inner.replace("Tensor(", "tensor(", 1)

    # Copied and saved

    def __getstate__(self) -> dict[str, Any]:
        """The attributes that a user has set on it."""
        return {name: value for name, value in self.__dict__.items() if name not in _OWN_ATTRIBUTES}

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """A copy on the same GPU; tensors that share a storage share one afterwards, too.

        Of a parameter only the numbers: no gradient, no attributes, a storage of its own.
        """
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment.  If you were attempting to deepcopy a module, this may be "
                "because of a torch.nn.utils.weight_norm usage, see "
                "https://github.com/pytorch/pytorch/pull/103001"
            )
        is_parameter = isinstance(self, torch.nn.Parameter)
        with torch._C.DisableTorchFunction():
            data = self._data.clone() if is_parameter else copy.deepcopy(self._data, memo)
        made: torch.Tensor = VirtualTensor(data, self._gpu)
        if is_parameter:
            memo[id(self)] = torch.nn.Parameter(made, self.requires_grad)
            return memo[id(self)]  # type: ignore[no-any-return]
        memo[id(self)] = made.requires_grad_(self.requires_grad)
        if self.grad is not None:
            made.grad = copy.deepcopy(self.grad, memo)
        made.__dict__.update(copy.deepcopy(self.__getstate__(), memo))
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled as a CUDA tensor, so that checkpoints can be exchanged with real GPUs.

        PyTorch does that by itself once the storage says that it is on the GPU.
        """
        if isinstance(self, torch.nn.Parameter):
            return torch.nn.Parameter.__reduce_ex__(self, protocol)  # type: ignore[no-untyped-call]
        with torch._C.DisableTorchFunction():
            data: Any = self._data.resolve_conj().resolve_neg().detach()
            rebuild, contents = data.requires_grad_(self.requires_grad).__reduce_ex__(protocol)
        if self.is_sparse:  # contents: layout, (indices, values, size, coalesced)
            layout, (_, _, *rest) = contents
            return rebuild, (layout, (self._indices(), self._values(), *rest))
        on_gpu(data.untyped_storage(), self._gpu)
        return rebuild, contents


@functools.cache
def is_made_of_others(kind: type) -> bool:
    """Whether a class is that of tensors around other tensors: a DTensor, say."""
    return kind is not VirtualTensor and hasattr(kind, "__tensor_flatten__")


def made_of_others(types: Iterable[type]) -> bool:
    """Whether there is such a class among `types`."""
    return any(is_made_of_others(kind) for kind in types)


# Messages of PyTorch and `type(x)` name the class: they should read as on a real GPU.
VirtualTensor.__name__ = VirtualTensor.__qualname__ = "Tensor"
VirtualTensor.__module__ = "torch"


class VirtualStorage(torch.UntypedStorage):
    """The storage of a tensor on a virtual GPU."""

    _gpu: Gpu

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A plain storage: `type(storage)(size, device="cpu")` is how async_save makes its copy."""
        return _Storage(*args, **kwargs)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._gpu.device

    @property
    def is_cuda(self) -> bool:
        return True

    def cpu(self) -> torch.UntypedStorage:
        note_copy(self._gpu, None, self.nbytes())
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
        self._gpu.meter.hold(self)
        return self


def on_gpu(storage: torch.UntypedStorage, gpu: Gpu) -> VirtualStorage:
    """`storage` as one that says it is on `gpu`: the same object, so that sharing stays visible."""
    storage.__class__ = VirtualStorage
    assert isinstance(storage, VirtualStorage)
    storage._gpu = gpu
    return storage


_plain_to: Any = torch.UntypedStorage.to


def storage_to(storage: Any, *, device: Any, non_blocking: bool = False) -> torch.UntypedStorage:
    """`storage.to(device=...)` for every storage while virtual GPUs are on."""
    device = named(device)
    if device.type != "cuda":
        if device.type == "cpu" and storage.device.type != "cpu":
            return storage.cpu()  # type: ignore[no-any-return]
        return _plain_to(storage, device=device, non_blocking=non_blocking)  # type: ignore[no-any-return]
    gpu = gpu_of(core_device(device))
    assert gpu is not None
    if storage.device == gpu.device:
        return storage  # type: ignore[no-any-return]
    data = _Storage(storage.nbytes(), device=gpu.backing).copy_(storage, False)
    note_copy(getattr(storage, "_gpu", None), gpu, storage.nbytes())
    return on_gpu(data, gpu)
