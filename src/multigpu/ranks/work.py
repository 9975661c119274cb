"""The handle of a traced call.  Its result becomes visible when somebody asks for it, not before.

Real communication writes into a tensor at some moment between start and ``wait()``.  Code that
reads too early is then right by luck on most runs.  Here an async call works on copies, and the
result comes into the caller's tensors at ``wait()``: who forgets to wait sees old values each time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from multigpu.ranks.recorder import Recorder

Tensors = Sequence[torch.Tensor]


class Copies:
    """Stand-ins for the tensors of an async call.  ``outputs`` are those that it fills.

    ``before`` holds the values at the start, to see at the end whether the caller has written into
    a tensor that was on its way.
    """

    @torch.no_grad()
    def __init__(self, tensors: Tensors, outputs: Tensors) -> None:
        self._tensors = [tensor.detach() for tensor in tensors]
        with _disable_current_modes():  # copies of ours do not count as the rank's memory
            self._before = [tensor.clone() for tensor in self._tensors]
            self._stand_ins = {id(t): c.clone() for t, c in zip(tensors, self._before, strict=True)}
        self._outputs = [(tensor.detach(), self._stand_ins[id(tensor)]) for tensor in outputs]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the call works on in the place of ``tensor``."""
        return self._stand_ins.get(id(tensor), tensor)

    @torch.no_grad()
    def publish(self) -> bool:
        """Bring the results into the caller's tensors; say whether these had been changed."""
        pairs = zip(self._tensors, self._before, strict=True)
        with _disable_current_modes():
            changed = any(not same_bits(now, before) for now, before in pairs)
        for tensor, result in self._outputs:
            tensor.copy_(result)
        return changed


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal in every bit, so that nan is nan."""
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    if one.is_floating_point():
        integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        kind = integer[one.element_size()]
        one, other = one.view(kind), other.view(kind)
    return torch.equal(one, other)


class TracedWork(dist.Work):
    """A ``Work`` that says when it is waited for and when it is done."""

    def __init__(
        self,
        inner: dist.Work,
        recorder: Recorder,
        number: int,
        *,
        tensors: Tensors,
        copies: Copies | None,
        sources: Sequence[int] = (),
    ) -> None:
        """``sources``: of a receive from anybody, the global ranks of the group's members."""
        super().__init__()
        self._inner, self._recorder, self._number = inner, recorder, number
        self._tensors, self._copies = list(tensors), copies
        self._sources = sources
        self._lock, self._over = threading.Lock(), False

    def __del__(self) -> None:
        """Keep a message that nobody waited for: gloo would block in its destructor for ever."""
        if not self._over:
            self._recorder.dropped.append(self._inner)

    def wait(self, timeout: Any = None) -> bool:
        """Block until the result is there."""
        if self._over:
            return True
        with self._recorder.waiting(self._number):
            self._inner.wait(*([] if timeout is None or _endless(timeout) else [timeout]))
        self._publish()
        return True

    def synchronize(self) -> None:
        """The same for those who call it by this name."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the result is there; if so, it can be seen from now on."""
        if self._inner.is_completed():
            self._publish()
        return self._over

    def get_future(self) -> torch.futures.Future[Any]:
        """Completes with the list of tensors, which hold the result then."""

        def publish(_: object) -> list[torch.Tensor]:
            self._publish()
            return self._tensors

        future: torch.futures.Future[Any] = self._inner.get_future().then(publish)
        self._recorder.futures[future] = (self._number, lambda: self._over)
        return future

    def result(self) -> list[torch.Tensor]:
        """The tensors, once ``wait`` is over."""
        return self._tensors

    def is_success(self) -> bool:
        """Whether it ended without an error."""
        return self._inner.is_success()

    def exception(self) -> Any:
        """The error that it ended with."""
        return self._inner.exception()

    def source_rank(self) -> int:
        """Where a message came from."""
        return self._inner._source_rank()

    _source_rank = source_rank

    def _publish(self) -> None:
        with self._lock:
            if self._over:
                return
            changed = self._copies.publish() if self._copies is not None else False
            self._over = True
        source = self._sources[self._inner._source_rank()] if self._sources else None
        self._recorder.done(self._number, changed=changed, source=source)


def _endless(timeout: Any) -> bool:
    """C++ asks for no time limit with zero seconds."""
    return not timeout.total_seconds()
