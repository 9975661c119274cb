"""Predicts the seconds of a step from what its operations must do, and times calls.

    here = Roofline.measure()                    # FLOP/s of a matrix product, bytes/s of memory
    done = operations(lambda: loss_fn(model(rows), targets).backward())
    here.seconds(done)                           # a lower bound
    here.fitted(done, measured).seconds(others)  # a prediction for another model

An operation computes, and it moves bytes from and to memory. Both happen at the same time, so it
takes at least as long as the slower of them. Source: Williams et al. 2009, Roofline, Communications
of the ACM 52.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import flop_registry

SIZE = {"cpu": 1024, "cuda": 8192}  # of the matrices that are multiplied
NUMBERS = {"cpu": 2**23, "cuda": 2**28}  # of the vector that is read and written
MEASURED = 1.0  # seconds for one call, and for each of the three rates
ROUGHLY = 0.1  # seconds for one call, if its time only has to be there
UNTOUCHED = ("aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty")


@dataclass(frozen=True)
class Operation:
    """One operator of PyTorch, such as `aten.addmm`, with what it did."""

    name: str
    flops: int  # of matrix products, convolutions and attention; 0 for all others
    bytes: int  # of all tensors that it read or wrote, each as if it came from memory

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: FLOPs for each byte."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class Roofline:
    """What a device can do at most: compute, move bytes, and start operators."""

    flops_per_second: float
    bytes_per_second: float
    start_seconds: float = 0.0  # the shortest operator there is

    @classmethod
    def measure(cls, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Roofline:
        """Time a matrix product, an addition in place, and the addition of one number.

        The fastest of many runs counts, because other programs only make them slower. It takes
        about three seconds, with as many threads as PyTorch uses here.
        """
        kind = torch.device(device).type
        n = SIZE[kind]
        square = torch.ones(n, n, device=device, dtype=dtype)
        vector = torch.ones(NUMBERS[kind], device=device, dtype=dtype)
        one = torch.ones(1, device=device, dtype=dtype)
        return cls(
            flops_per_second=2 * n**3 / min(_times(lambda: square @ square)),
            bytes_per_second=2 * vector.nbytes / min(_times(lambda: vector.add_(1))),
            start_seconds=min(_times(lambda: one + 1)),
        )

    @property
    def ridge(self) -> float:
        """FLOPs for each byte from which on arithmetic is the limit, and not memory."""
        return self.flops_per_second / self.bytes_per_second

    def seconds(self, done: Iterable[Operation]) -> float:
        """The time of operators one after the other, each limited by the slower of its parts."""
        return sum(
            max(
                each.flops / self.flops_per_second,
                each.bytes / self.bytes_per_second,
                self.start_seconds,
            )
            for each in done
        )

    def fitted(self, done: Iterable[Operation], seconds: float) -> Roofline:
        """The same with the bytes per second at which `done` takes `seconds`.

        Memory is what a roofline describes worst: caches are faster, and new memory is slower.
        Raises ValueError where arithmetic alone takes longer.
        """
        done = list(done)
        low, high = 1.0, 1e18  # bytes per second
        if (least := replace(self, bytes_per_second=high).seconds(done)) > seconds:
            raise ValueError(
                f"{seconds:.3g} s is less than the arithmetic of these operators takes, "
                f"{least:.3g} s: measure both on the same device, with as many threads"
            )
        for _ in range(200):
            middle = (low * high) ** 0.5
            slower = replace(self, bytes_per_second=middle).seconds(done) > seconds
            low, high = (middle, high) if slower else (low, middle)
        return replace(self, bytes_per_second=high)


def only_roughly() -> bool:
    """Whether times only have to be there, and measurements repeat as little as they can.

    Tests that run a page and compare all on it but times set `MULTIGPU_TIMES=rough`.
    """
    return os.environ.get("MULTIGPU_TIMES") == "rough"


def median_seconds(step: Callable[[], Any]) -> float:
    """The median time of a call, repeated for a second; it waits for GPUs."""
    # A roofline is never measured roughly: too slow a one would refuse to be fitted.
    return median(_times(step, ROUGHLY if only_roughly() else MEASURED))


def seconds_of_each(step: Callable[[], Any], *, calls: int, warmup: int) -> list[float]:
    """The seconds of each call after the warm-up; ranks begin every call together.

    For calls that queue work on a GPU: let `step` wait for it, with `torch.cuda.synchronize`.
    """
    if only_roughly():
        calls, warmup = 1, min(warmup, 1)
    seconds = []
    for _ in range(warmup + calls):
        dist.barrier()
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return seconds[warmup:]


def _times(step: Callable[[], Any], at_least: float = MEASURED) -> list[float]:
    timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
    return [float(each) for each in timer.blocked_autorange(min_run_time=at_least).times]


def operations(step: Callable[[], Any]) -> list[Operation]:
    """The operators that a call runs, in their order: those of backward, too.

    FLOPs are counted as PyTorch's `FlopCounterMode` does, and also those of attention on the CPU,
    which it leaves out. Views are left out, because they move nothing.
    """
    with _Watching() as watching:
        step()
    return watching.done  # type: ignore[no-any-return]


ATTENTION = "aten._scaled_dot_product_flash_attention"
COUNTED = {str(operator): count for operator, count in flop_registry.items()}
COUNTED |= {
    f"{ATTENTION}_for_cpu": COUNTED[ATTENTION],
    f"{ATTENTION}_for_cpu_backward": COUNTED[f"{ATTENTION}_backward"],
}


class _Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.done: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = str(func.overloadpacket)
        read = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        in_place = name.endswith("_")
        written = [t for t in tree_leaves(args[0] if in_place else result) if isinstance(t, Tensor)]
        there = {t.untyped_storage().data_ptr() for t in read}
        is_view = all(t.untyped_storage().data_ptr() in there for t in written)
        if name not in UNTOUCHED and (in_place or "out" in kwargs or not is_view):
            count = COUNTED.get(name)
            flops = int(count(*args, **kwargs, out_val=result)) if count else 0
            moved = sum(tensor.numel() * tensor.element_size() for tensor in read + written)
            self.done.append(Operation(name, flops, moved))
        return result
