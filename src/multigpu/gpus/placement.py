"""Which GPU an operator runs on, and CUDA's refusal when its tensors are on several."""

from __future__ import annotations

from typing import Any

import torch

from multigpu.gpus import errors, generators
from multigpu.gpus.devices import CPU, gpu_of
from multigpu.gpus.gpu import Gpu
from multigpu.gpus.plans import Plan
from multigpu.gpus.tensor import VirtualTensor


def target(kwargs: dict[str, Any], shells: list[VirtualTensor]) -> Gpu | None:
    """The GPU of the result: the device asked for, else where the arguments are."""
    device = kwargs.get("device")
    if device is not None:
        return gpu_of(device)
    return shells[0]._gpu if shells else None


def check(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], gpu: Gpu) -> None:
    """Raise CUDA's error unless all tensors are on `gpu`.

    As under CUDA a 0-dim CPU tensor may stand for a number in most operators, and some take some
    arguments (lengths, indices) from the CPU.
    """
    arguments = zip(plan.argument_names, args, strict=False)
    for position, (name, argument) in enumerate((*arguments, *kwargs.items())):
        is_result = (plan.mutates and position == 0) or name == "out"
        as_number = plan.takes_numbers and not is_result
        if _is_elsewhere(argument, gpu, as_number=as_number) and (
            name not in plan.cpu_arguments or _on_another_gpu(argument, gpu)
        ):
            raise _refusal(plan, args, kwargs)


def _is_elsewhere(argument: Any, gpu: Gpu, *, as_number: bool) -> bool:
    if isinstance(argument, VirtualTensor):
        return argument._gpu is not gpu
    if isinstance(argument, torch.Tensor):
        return not (as_number and argument.ndim == 0)
    if isinstance(argument, (list, tuple)):
        return any(_is_elsewhere(item, gpu, as_number=as_number) for item in argument)
    return False


def _on_another_gpu(argument: Any, gpu: Gpu) -> bool:
    if isinstance(argument, (list, tuple)):
        return any(_on_another_gpu(item, gpu) for item in argument)
    return isinstance(argument, VirtualTensor) and argument._gpu is not gpu


def _refusal(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RuntimeError:
    """The error for the first two tensors on different devices, in order of the arguments."""
    tensors = [
        (argument_name, tensor)
        for argument_name, argument in (
            *zip(plan.argument_names, args, strict=False),
            *kwargs.items(),
        )
        for tensor in (argument if isinstance(argument, (list, tuple)) else [argument])
        if isinstance(tensor, torch.Tensor)
    ]
    dimensional = [pair for pair in tensors if pair[1].ndim or isinstance(pair[1], VirtualTensor)]
    if len({tensor.device for _, tensor in dimensional}) > 1:
        tensors = dimensional
    first = tensors[0][1]
    others = [pair for pair in tensors if pair[1].device != first.device]
    if not others:
        return RuntimeError(
            "tensors of two virtual machines cannot be mixed: take one through .cpu()"
        )
    return errors.different_devices(plan.name, first, *others[0], elementwise=plan.elementwise)


def generator_of(gpu: Gpu | None, generator: torch.Generator | None) -> torch.Generator | None:
    """The generator to draw from on `gpu`; the caller's must be of that device."""
    if generator is None:
        return None if gpu is None else gpu.generator
    generators.check(generator, CPU if gpu is None else gpu.device)
    return generator
