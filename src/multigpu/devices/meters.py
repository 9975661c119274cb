"""Meters of a GPU: the bytes that its tensors hold, and every copy between two devices.

Memory counts storages, not tensors: a view holds its base's storage and costs nothing more, and the
bytes fall when the last tensor on a storage is deleted. Bytes are exact; a real GPU rounds each
allocation up (to 512 bytes) and keeps freed blocks for later.

    with virtual_gpus(2) as machine:
        torch.ones(1000).to("cuda:1")
        machine.memory(1).allocated        # 0: nothing holds the tensor any more
        machine.traffic.by_link()          # {("cpu", "cuda:1"): 4000}
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS |= {f"{_letter}IB": 1024**_power, f"{_letter}B": 1000**_power}


def parse_bytes(size: int | str) -> int:
    """Bytes of "8 GiB", "512MB" or a plain number. Raises ValueError for anything else."""
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
        if match is None or match[2].upper() not in _UNITS:
            raise ValueError(f'memory={size!r}: write it like "8 GiB" or "512 MiB", or as bytes')
        count = int(float(match[1]) * _UNITS[match[2].upper()])
    else:
        count = int(size)
    if count <= 0:
        raise ValueError(f"memory={size!r}: a GPU needs more than 0 bytes")
    return count


@dataclass(frozen=True)
class Memory:
    """Bytes allocated now, their peak, and the GPU's size."""

    allocated: int
    peak: int
    limit: int


class Holding:
    """The bytes of one storage. It is attached to the storage and releases them with it."""

    def __init__(self, meter: MemoryMeter) -> None:
        self.bytes = 0
        self._meter = meter

    def resize(self, size: int) -> None:
        """The storage has grown or shrunk to `size` bytes."""
        self._meter.change(size - self.bytes)
        self.bytes = size

    def __del__(self) -> None:
        self._meter.change(-self.bytes)


class MemoryMeter:
    """Counts storages against `limit` bytes, if there is a limit.

    `full(wanted=..., allocated=..., limit=..., allowed=...)` is the error to raise where one does
    not fit; `allowed` is how much of the limit the process may use.
    """

    def __init__(self, limit: int = sys.maxsize, full: Callable[..., Exception] = MemoryError):
        self.limit = self.allowed = limit
        self.allocated = 0
        self.peak = 0
        self.refusals = 0  # how often one did not fit
        self._full = full
        # Re-entrant: the garbage collector may drop a Holding while the lock is held.
        self._lock = threading.RLock()

    def hold(self, storage: Any, size: int | None = None) -> None:
        """Count `storage` (of `size` bytes, if not its own) once, as long as it lives.

        A tensor's storage stays the same object of Python, whatever views there are of it.
        """
        holdings = vars(storage).setdefault("_holdings", {})  # each meter's own
        holding = holdings.get(self)
        if holding is None:
            holding = holdings[self] = Holding(self)
        size = storage.nbytes() if size is None else size
        if holding.bytes != size:
            holding.resize(size)

    def check(self, size: int) -> None:
        """Raise the error if `size` more bytes would not fit."""
        if self.allocated + size > self.allowed:
            self.refusals += 1
            state = {"allocated": self.allocated, "limit": self.limit, "allowed": self.allowed}
            raise self._full(wanted=size, **state)

    def change(self, size: int) -> None:
        """`size` bytes more (or fewer, if negative) are allocated."""
        with self._lock:
            if size > 0:
                self.check(size)
            self.allocated += size
            self.peak = max(self.peak, self.allocated)

    def reset_peak(self) -> None:
        """Let the peak start again from what is allocated now."""
        with self._lock:
            self.peak = self.allocated

    def read(self) -> Memory:
        with self._lock:
            return Memory(self.allocated, self.peak, self.limit)


@dataclass(frozen=True)
class Copy:
    """One copy: from device `source` to device `target`, `bytes` bytes long."""

    source: str
    target: str
    bytes: int


class Traffic(list[Copy]):
    """Every copy between devices, in the order made. Safe to read and add to from any thread."""

    def __init__(self, copies: Iterable[Copy] = ()) -> None:
        super().__init__(copies)
        self._recorders: list[Traffic] = []

    def add(self, copy: Copy) -> None:
        """Append `copy`, here and in every recording that is running."""
        self.append(copy)
        for recorder in tuple(self._recorders):
            recorder.add(copy)

    @property
    def total(self) -> int:
        return sum(copy.bytes for copy in self)

    def by_link(self) -> dict[tuple[str, str], int]:
        """Bytes per (source, target), in the order in which the links were first used."""
        links: dict[tuple[str, str], int] = {}
        for copy in self:
            link = (copy.source, copy.target)
            links[link] = links.get(link, 0) + copy.bytes
        return links

    @contextlib.contextmanager
    def record(self) -> Iterator[Traffic]:
        """Collect only the copies that are made inside the `with` block, by any thread."""
        recorder = Traffic()
        self._recorders.append(recorder)
        try:
            yield recorder
        finally:
            # By identity: two empty recordings are equal, and each must remove itself.
            self._recorders[:] = [other for other in self._recorders if other is not recorder]

    def __repr__(self) -> str:
        return f"Traffic({len(self)} copies, {self.total:,} bytes)"
