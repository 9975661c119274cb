"""Random numbers: each GPU has its own generator, seeded as CUDA's are.

The numbers differ from those of a CPU generator with the same seed, as they do on a real GPU, so
that nobody comes to rely on their being equal.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

# Mixed into seeds; any odd number of 63 bits would do (this is 2**63 over the golden ratio).
_DIFFERENT_FROM_CPU = 0x4F1BBCDCBFA53E0B


# By the address of the core's generator: what an operator receives is a new object around it.
_known: weakref.WeakValueDictionary[int, VirtualGenerator] = weakref.WeakValueDictionary()


def device_of(generator: torch.Generator) -> torch.device:
    """The device a generator is for."""
    known = _known.get(generator._cdata)  # type: ignore[attr-defined]
    return generator.device if known is None else known.device


def check(generator: torch.Generator, device: torch.device) -> None:
    """Raise CUDA's error unless `generator` is for a device of `device`'s type and index."""
    found = device_of(generator)
    if found.type != device.type:
        raise RuntimeError(
            f"Expected a '{device.type}' device type for generator but found '{found.type}'"
        )
    if found.index != device.index:
        raise RuntimeError(
            f"Expected a generator of {device} but found one of {found}: each GPU has its own"
        )


class VirtualGenerator(torch._C.Generator):
    """`torch.Generator(device="cuda:1")`: draws on the GPU's backing, and says it is cuda:1."""

    _device: torch.device
    _seed: int

    def __new__(cls, index: int, backing: torch.device) -> VirtualGenerator:
        generator: Any = super().__new__(cls, backing)  # type: ignore[call-arg]
        generator._device = torch.device("cuda", index)
        _known[generator._cdata] = generator
        generator.manual_seed(torch._C.default_generator.initial_seed())
        return generator  # type: ignore[no-any-return]

    def __init__(self, index: int, backing: torch.device) -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._device

    def manual_seed(self, seed: int) -> VirtualGenerator:
        self._seed = int(seed)
        super().manual_seed((self._seed ^ _DIFFERENT_FROM_CPU) % 2**63)
        return self

    def seed(self) -> int:
        self.manual_seed(super().seed() % 2**63)
        return self._seed

    def initial_seed(self) -> int:
        return self._seed
