"""Which build of PyTorch to install: the small one for CPUs, or the one with CUDA.

On Linux a plain ``pip install torch`` brings several GB of CUDA libraries. Without an NVIDIA GPU
they are never used, so the CPU build is tried first, from wherever it can be had.
"""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CPU_INDEX = "https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True)
class Attempt:
    """One way to get PyTorch: what to ask pip for, and what to tell the reader."""

    requirement: str
    options: tuple[str, ...]
    says: str
    index: str | None = None


def attempts(version: str, *, system: str, has_gpu: bool, index: str | None) -> Sequence[Attempt]:
    """The ways to try, in order; each is only tried when the one before it failed.

    Args:
        version: as pinned in constraints.txt, for example ``2.13.0``.
        system: ``platform.system()``.
        has_gpu: whether this machine has an NVIDIA GPU.
        index: the reader's ``TORCH_INDEX``; nothing else is tried then.
    """
    plain = f"torch=={version}"
    cpu = f"{plain}+cpu"
    if index:
        return [_from_index(plain, index, f"PyTorch {version} from {index}")]
    if system != "Linux":  # the build for macOS is the small one already
        return [Attempt(plain, (), f"PyTorch {version}")]
    if has_gpu:
        return [Attempt(plain, (), f"PyTorch {version} with CUDA, several GB, for your NVIDIA GPU")]
    return [
        Attempt(cpu, ("--no-deps",), f"PyTorch {version}, CPU build (no NVIDIA GPU found)"),
        _from_index(cpu, CPU_INDEX, f"PyTorch {version}, CPU build (no NVIDIA GPU found)"),
        Attempt(
            plain,
            (),
            f"PyTorch {version} from pip's usual place, perhaps several GB: {CPU_INDEX} did not "
            "answer or has no build for this Python (TORCH_INDEX=... names another)",
        ),
    ]


def _from_index(requirement: str, index: str, says: str) -> Attempt:
    # Without dependencies: such an index has old ones or none, the next step takes them from PyPI.
    return Attempt(requirement, ("--no-deps", "--index-url", index), says, index)


def has_nvidia_gpu(driver: Path = Path("/proc/driver/nvidia/gpus")) -> bool:
    """Whether the NVIDIA driver is loaded and lists a GPU."""
    if driver.is_dir() and any(driver.iterdir()):
        return True
    command = shutil.which("nvidia-smi")
    if command is None:
        return False
    try:
        listed = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        return False
    return listed.returncode == 0 and "GPU 0" in listed.stdout
