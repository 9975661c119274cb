"""What one rank does or knows for all of them, so that no rank waits for one that has failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist


def in_a_group() -> bool:
    """Whether there are other ranks to agree with."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def main_rank_does(work: Callable[[], None], *, error: type[Exception]) -> None:
    """Run `work` on rank 0 and return when it is done, on every rank.

    Whatever `work` raises is raised on rank 0; the other ranks then raise `error` with its message.
    """
    verdict: list[Any] = [None]
    cause: Exception | None = None
    if not in_a_group() or dist.get_rank() == 0:
        try:
            work()
        except Exception as problem:
            verdict, cause = [str(problem)], problem
    if in_a_group():
        dist.broadcast_object_list(verdict, src=0)
    if cause is not None:
        raise cause
    if verdict[0] is not None:
        raise error(verdict[0])


def everyones(mine: Any) -> list[Any]:
    """What every rank gave, in rank order, on every rank."""
    if not in_a_group():
        return [mine]
    given: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(given, mine)
    return given


def from_main_rank(value: Any) -> Any:
    """Rank 0's `value`, on every rank."""
    if not in_a_group():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def take_from_main_rank(tensors: Iterable[Tensor], *, device: torch.device) -> None:
    """Put rank 0's numbers into `tensors` on every rank, as DistributedDataParallel does.

    For weights and buffers, wherever they lie: they travel between the ranks' `device`.
    """
    with torch.no_grad():
        for tensor in tensors:
            if tensor.numel():
                sent = tensor.to(device).contiguous()  # the tensor itself, where it is so already
                dist.broadcast(sent, src=0)
                tensor.copy_(sent)
