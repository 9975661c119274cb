"""The memory of one GPU: which storages live on it, how many bytes, and the most there were.

What counts is storages, not tensors: a view holds its base's storage and costs nothing more, and
the bytes fall when the last tensor on a storage goes. Bytes are exact; a real GPU rounds each
allocation up (to 512 bytes) and keeps freed blocks for later.
"""

from __future__ import annotations

import re
import threading
import weakref
from dataclasses import dataclass

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS |= {f"{_letter}IB": 1024**_power, f"{_letter}B": 1000**_power}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True)
class Memory:
    """Bytes allocated now, the most there were, and the GPU's size."""

    allocated: int
    peak: int
    limit: int


class MemoryFull(Exception):
    """An allocation of `wanted` bytes does not fit; the caller words it as CUDA does."""

    def __init__(self, wanted: int) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class Holding:
    """The right to keep one storage on a GPU; the bytes are given back when it is dropped.

    Every tensor on the storage refers to the same Holding, so its end is the storage's end.
    """

    __slots__ = ("__weakref__", "_meter", "bytes")

    def __init__(self, meter: MemoryMeter, size: int) -> None:
        self.bytes = 0
        self._meter = meter
        self.resize(size)

    def resize(self, size: int) -> None:
        """The storage has grown or shrunk to `size` bytes."""
        self._meter.change(size - self.bytes)
        self.bytes = size

    def __del__(self) -> None:
        self._meter.change(-self.bytes)


class MemoryMeter:
    """Counts the storages of one GPU against `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.allocated = 0
        self.peak = 0
        # Re-entrant: the garbage collector may drop a Holding while the lock is held.
        self._lock = threading.RLock()
        self._holdings: weakref.WeakValueDictionary[int, Holding] = weakref.WeakValueDictionary()

    def hold(self, storage: int, size: int) -> Holding:
        """The Holding of the storage with address `storage`; `size` is its bytes.

        Raises MemoryFull if it is new (or has grown) and does not fit.
        """
        with self._lock:
            holding = self._holdings.get(storage)
            if holding is None:
                holding = self._holdings[storage] = Holding(self, size)
            elif holding.bytes != size:
                holding.resize(size)
            return holding

    def holds(self, storage: int) -> bool:
        """Whether a storage with this address is on the GPU."""
        return storage in self._holdings

    def check(self, size: int) -> None:
        """Raise MemoryFull if `size` more bytes would not fit."""
        if self.allocated + size > self.limit:
            raise MemoryFull(size)

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
        """The meter's state."""
        with self._lock:
            return Memory(self.allocated, self.peak, self.limit)


def parse_bytes(size: int | str) -> int:
    """Bytes of "8 GiB", "512MB" or a plain number. Raises ValueError for anything else."""
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        if match is None or match[2].upper() not in _UNITS:
            raise ValueError(f'memory={size!r}: write it like "8 GiB" or "512 MiB", or as bytes')
        count = int(float(match[1]) * _UNITS[match[2].upper()])
    else:
        count = int(size)
    if count <= 0:
        raise ValueError(f"memory={size!r}: a GPU needs more than 0 bytes")
    return count
