"""Memory and use of this machine's GPUs as figures for the history."""

from __future__ import annotations

from multigpu.devices.monitor import snapshot


def gpu_figures() -> dict[str, float]:
    """What nvitop says of the GPUs that torch sees now; on virtual GPUs, their memory.

    Per GPU i: `gpu{i}_gib`, what all processes have on it together in GiB, and `gpu{i}_busy`, the
    percentage of the last moments (up to a second) in which it computed. What a GPU does not tell
    is left out; {} without a GPU. With several machines: the GPUs of this one.
    """
    figures: dict[str, float] = {}
    for status in snapshot():
        if status.memory_used is not None:
            figures[f"gpu{status.index}_gib"] = status.memory_used / 2**30
        if status.utilisation is not None:
            figures[f"gpu{status.index}_busy"] = status.utilisation
    return figures
