"""Random numbers to go on with: the state of every generator that a training step may draw from.

A run that was ended goes on with the numbers it would have drawn, when every generator of every
rank is put back to where it was. The states are kept as tensors and plain numbers, so that a
checkpoint loads with `weights_only=True`, which runs no code from the file.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import torch


def collect(devices: Iterable[torch.device] | None = None) -> dict[str, Any]:
    """The states of this process's generators: torch's, Python's and NumPy's.

    `devices`: the GPUs that this rank computes on, in their order. Default: the current one, if
    this process has used a GPU at all; asking the others would start CUDA on each of them.
    """
    import numpy

    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = tuple(numpy.random.get_state())
    return {
        "torch": torch.get_rng_state(),  # (5056,) bytes
        "cuda": [torch.cuda.get_rng_state(device) for device in gpus_in_use(devices)],
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "kind": str(kind),
            "keys": torch.tensor(numpy.asarray(keys).tolist()),  # (624,) numbers of 32 bits
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
    }


def restore(state: dict[str, Any], *, devices: Iterable[torch.device] | None = None) -> None:
    """Put this process's generators back to what `collect` returned.

    GPUs are counted in their order: the state of the first one goes to the first of `devices`,
    whatever its number. What was saved for GPUs that are not here is left out.
    """
    import numpy

    torch.set_rng_state(state["torch"])
    for device, saved in zip(gpus_in_use(devices), state["cuda"], strict=False):
        torch.cuda.set_rng_state(saved, device)
    python, legacy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    keys = numpy.array(legacy["keys"].tolist(), dtype=numpy.uint32)
    tail = (legacy["position"], legacy["has_gauss"], legacy["cached"])
    numpy.random.set_state((legacy["kind"], keys, *tail))


def gpus_in_use(devices: Iterable[torch.device] | None) -> Sequence[torch.device]:
    """The CUDA devices among `devices`; None: the current one, where CUDA is in use."""
    if devices is not None:
        return [device for device in devices if device.type == "cuda"]
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    return [torch.device("cuda", torch.cuda.current_device())]
