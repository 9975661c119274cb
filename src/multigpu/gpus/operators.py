"""Runs PyTorch's operators (`torch.ops.aten...`) on the data inside virtual tensors.

Every operator that touches a virtual GPU ends here, below autograd: all tensors are checked to be
on one GPU, the operator runs on their data, the results are put on that GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from multigpu.gpus import errors, half, placement
from multigpu.gpus.devices import gpu_of
from multigpu.gpus.gpu import Gpu
from multigpu.gpus.plans import Plan, plan_of
from multigpu.gpus.tensor import VirtualTensor, put_back


class Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Brings operators without a tensor argument (factories) to `run`, too."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch.compile is refused here, and importing what would tell it to stay out takes seconds.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


_core: Any = torch._C
_LAZY_MARKS = (torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative)
_is_excluded = _core._dispatch_tls_is_dispatch_key_excluded
_set_excluded = _core._dispatch_tls_set_dispatch_key_excluded

dispatch_mode = Dispatch()  # type: ignore[no-untyped-call]


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of operator `func`, on the GPU of its arguments."""
    plan = plan_of(func)
    with torch._C.DisableTorchFunction(), _LazyMarks():
        if plan.special is not None:
            return plan.special(plan, func, args, kwargs)
        if plan.composite:
            return _take_apart(func, args, kwargs)
        return run_plainly(plan, args, kwargs)


def run_plainly(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`run` for operators without rules of their own."""
    tensors = _Tensors()
    data = [tensors.taken_out(argument) for argument in args]
    named_data = {name: tensors.taken_out(argument) for name, argument in kwargs.items()}
    shells = tensors.shells
    gpu = placement.target(kwargs, shells)
    if shells:
        if shells[0]._gpu.machine.forked:
            raise errors.forked()
        if tensors.are_scattered():
            if plan.name.startswith("_foreach_") and len(args[0]) > 1:
                return _one_by_one(plan, args, kwargs)
            placement.check(plan, args, kwargs, shells[0]._gpu)
    elif gpu is not None:
        gpu.check(plan.bytes_asked_for(args, kwargs))
    if kwargs:
        _place_inside(gpu, named_data)
    if plan.generator:
        named_data["generator"] = placement.generator_of(gpu, kwargs.get("generator"))
    result = half.run(plan.operator, data, named_data, mutates=plan.mutates)
    if plan.reshapes:
        _refresh(shells)
    return _put_in(result, gpu, shells, plan.cpu_results)


class _LazyMarks:
    """Lets operators that are made of others see lazy conjugation and negation.

    Below autograd the core has switched these marks off, as each operator's own arguments have been
    resolved. But `torch.linalg.pinv`, run whole, makes conjugated tensors inside.
    """

    __slots__ = ("_switched",)

    def __enter__(self) -> None:
        self._switched = [key for key in _LAZY_MARKS if _is_excluded(key)]
        for key in self._switched:
            _set_excluded(key, False)

    def __exit__(self, *error: Any) -> None:
        for key in self._switched:
            _set_excluded(key, True)


def _take_apart(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator as the others it is made of; in inference mode the core does not."""
    torch._C._push_on_torch_dispatch_stack(dispatch_mode)
    try:
        return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
    finally:
        torch._C._pop_torch_dispatch_stack(None)


def _one_by_one(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on lists of tensors position by position: each may be on its own GPU."""
    count = len(args[0])

    def at(position: int, argument: Any) -> Any:
        is_list = isinstance(argument, (list, tuple)) and len(argument) == count
        return argument[position : position + 1] if is_list else argument

    results = [
        run_plainly(
            plan,
            tuple(at(position, argument) for argument in args),
            {name: at(position, argument) for name, argument in kwargs.items()},
        )
        for position in range(count)
    ]
    return None if results[0] is None else [item for result in results for item in result]


class _Tensors:
    """The tensors among an operator's arguments: virtual ones, and how many others."""

    __slots__ = ("others", "shells")

    def __init__(self) -> None:
        self.shells: list[VirtualTensor] = []
        self.others = 0

    def taken_out(self, argument: Any) -> Any:
        """`argument` with the data in place of each virtual tensor."""
        if isinstance(argument, VirtualTensor):
            self.shells.append(argument)
            return argument._data
        if isinstance(argument, (list, tuple)):
            return type(argument)([self.taken_out(item) for item in argument])
        if isinstance(argument, torch.Tensor):
            self.others += 1
        return argument

    def are_scattered(self) -> bool:
        """Whether they are not all on one GPU."""
        return self.others > 0 or any(
            shell._gpu is not self.shells[0]._gpu for shell in self.shells
        )


def _place_inside(gpu: Gpu | None, kwargs: dict[str, Any]) -> None:
    """Name the device where the data really go."""
    if gpu is not None:
        if gpu_of(kwargs.get("device")) is not None:
            kwargs["device"] = gpu.backing
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False


def _put_in(
    result: Any, gpu: Gpu | None, shells: list[VirtualTensor], cpu_results: tuple[int, ...] = ()
) -> Any:
    """`result` with every tensor on `gpu`; data that came in go out in the shell they had."""
    if isinstance(result, torch.Tensor):
        for shell in shells:
            if shell._data is result:
                return shell
        return result if gpu is None else VirtualTensor(result, gpu)
    if isinstance(result, (list, tuple)):
        return type(result)(
            [
                item if position in cpu_results else _put_in(item, gpu, shells)
                for position, item in enumerate(result)
            ]
        )
    return result


def _refresh(shells: list[VirtualTensor]) -> None:
    """Bring shells up to date whose data have changed shape, stride or storage."""
    for shell in shells:
        data = shell._data
        if data.layout is torch.strided and (
            shell.shape != data.shape
            or shell.stride() != data.stride()
            or shell.storage_offset() != data.storage_offset()
            or shell._gpu.hold(data) != shell._holdings
        ):
            put_back(shell, data)
