"""How much memory the tensors of a rank hold: a limit, and the most there was.

Without a GPU each rank plays one that has ``limit`` bytes: every storage that an operator returns
is counted as long as it lives, once for all its views. With a GPU, PyTorch's own allocator counts.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from multigpu.gpus.errors import out_of_memory
from multigpu.gpus.memory import MemoryFull, MemoryMeter
from multigpu.ranks.backend import rank_device

PLAIN = (torch.Tensor, torch.nn.Parameter)


@contextlib.contextmanager
def limited_memory(limit: int, *, rank: int) -> Iterator[Callable[[], int]]:
    """Raise torch.OutOfMemoryError in the block when tensors need more than ``limit`` bytes.

    Gives a function that tells the peak so far, in bytes.
    """
    device = rank_device()
    if device.type == "cuda":
        total = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
        torch.cuda.reset_peak_memory_stats(device)
        yield lambda: torch.cuda.max_memory_allocated(device)
        return
    meter = MemoryMeter(limit)
    with Metering(meter, rank), in_every_thread(lambda: Metering(meter, rank)):
        yield lambda: meter.read().peak


class Metering(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what every operator of this thread returns."""

    def __init__(self, meter: MemoryMeter, rank: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._meter, self._rank = meter, rank

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator and count its results."""
        if any(kind not in PLAIN for kind in types):
            return NotImplemented  # a DTensor, say: its parts come here by themselves
        result = func(*args, **(kwargs or {}))
        if func.namespace == "c10d":  # it has filled what it was given
            return result
        for tensor in tensors_in(result):
            self._count(tensor)
        return result

    def _count(self, tensor: Any) -> None:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        try:
            # The storage keeps it, and with it goes what was counted.
            storage.held = self._meter.hold(storage._cdata, storage.nbytes())
        except MemoryFull as full:
            now = self._meter.read()
            raise out_of_memory(
                self._rank, wanted=full.wanted, allocated=now.allocated, limit=now.limit
            ) from None


def tensors_in(result: object) -> Iterator[torch.Tensor]:
    """The tensors of what an operator returned: one, several, or several lists of them."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, tuple | list):
        for part in result:
            yield from tensors_in(part)


@contextlib.contextmanager
def in_every_thread(mode: Callable[[], TorchDispatchMode]) -> Iterator[None]:
    """Run every thread that starts in the block in a mode: modes belong to one thread."""
    start = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def start_in_mode(thread: threading.Thread) -> None:
        with mode():
            start(thread)

    threading.Thread._bootstrap_inner = start_in_mode  # type: ignore[attr-defined]
    try:
        yield
    finally:
        threading.Thread._bootstrap_inner = start  # type: ignore[attr-defined]
