"""Where the data of virtual GPUs really lie: on the CPU, or on one real GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from multigpu.gpus import active


def backing_device(name: str) -> torch.device:
    """The device `name`, ready for use. Raises ValueError if it cannot be a backing."""
    device = torch.device(name)
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise ValueError(f'backing={name!r}: use "cpu", or a real GPU such as "cuda:0"')
    if active.virtual_machine() is not None:
        raise ValueError(f"backing={name!r}: real GPUs are out of sight while virtual ones are on")
    if (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"backing={name!r}: this machine has {torch.cuda.device_count()} GPUs. Leave backing "
            "out to use the CPU."
        )
    torch.cuda.init()  # type: ignore[no-untyped-call]  # while torch.cuda is the real one
    return torch.device("cuda", device.index or 0)


@contextlib.contextmanager
def suitable_kernels(backing: torch.device) -> Iterator[None]:
    """Keep the core from kernels that only a CPU has, if the data are on a real GPU.

    It takes the shells for CPU tensors, and for LSTMs and attention would choose such kernels.
    """
    if backing.type == "cpu":
        yield
        return
    mkldnn, flash = torch._C._get_mkldnn_enabled(), torch._C._get_flash_sdp_enabled()
    torch._C._set_mkldnn_enabled(False)
    torch._C._set_sdp_use_flash(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(mkldnn)
        torch._C._set_sdp_use_flash(flash)
