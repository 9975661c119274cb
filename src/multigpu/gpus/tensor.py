"""A tensor on a virtual GPU: a shell that PyTorch computes with, around the real data.

The shell has shape, dtype, autograd history and the GPU's carrier device, but no data of its own.
When an operator arrives for it, `operators.run` takes out the data, runs the operator on them and
puts the results into new shells on the same GPU.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from multigpu.gpus import errors
from multigpu.gpus.gpu import Gpu
from multigpu.gpus.memory import Holding

# The attributes that make a tensor a virtual one, beside those a user may set.
OWN_ATTRIBUTES = frozenset({"_data", "_gpu", "_holdings", "_is_param"})


class VirtualTensor(torch.Tensor):
    """`data` (a plain tensor, without autograd) on `gpu`."""

    _data: torch.Tensor
    _gpu: Gpu
    _holdings: tuple[Holding, ...]

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
        shell._holdings = gpu.hold(data)
        return shell

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from multigpu.gpus.calls import intercept

        return intercept(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        from multigpu.gpus.operators import run

        return run(func, args, kwargs or {})

    # Where it is

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._gpu.device

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
        from multigpu.gpus.storage import on_gpu

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
            raise errors.no_numpy(self.device)
        return self.detach().cpu().resolve_conj().resolve_neg().numpy()

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise errors.no_numpy(self.device)

    @property
    def __cuda_array_interface__(self) -> NoReturn:
        raise AttributeError("the data of a virtual GPU cannot be handed to other CUDA libraries")

    def __dlpack__(self, **kwargs: Any) -> NoReturn:
        raise BufferError("the data of a virtual GPU cannot be exported: copy them with .cpu()")

    def apply_(self, callable: Any) -> NoReturn:
        raise TypeError("apply_ is only implemented on CPU tensors")

    def map_(self, other: Any, callable: Any) -> NoReturn:
        raise TypeError("map_ is only implemented on CPU tensors")

    def map2_(self, x: Any, y: Any, callable: Any) -> NoReturn:
        raise TypeError("map2_ is only implemented on CPU tensors")

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        from multigpu.gpus.printing import text_of

        return text_of(self)

    def __format__(self, format_spec: str) -> str:
        # PyTorch formats the number in a 0-dim tensor only if its class is exactly torch.Tensor.
        if self.dim() == 0:
            return format(self.item(), format_spec)
        return object.__format__(self, format_spec)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        from multigpu.gpus.identity import deep_copy

        return deep_copy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        from multigpu.gpus.storage import reduce

        return reduce(self)


# Messages of PyTorch and `type(x)` name the class: they shall read as on a real GPU.
VirtualTensor.__name__ = VirtualTensor.__qualname__ = "Tensor"
VirtualTensor.__module__ = "torch"


def put_back(shell: VirtualTensor, data: torch.Tensor) -> None:
    """Let `shell` hold `data`, after an operator has changed its shape or its storage."""
    fresh = VirtualTensor(data, shell._gpu)
    torch._C.TensorBase.data.__set__(shell, fresh)  # type: ignore[attr-defined]
    shell._data = data
    shell._holdings = fresh._holdings
