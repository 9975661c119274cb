"""``multigpu doctor``: whether the course runs on this machine and, if not, what to do.

There is one check for each thing that the course needs.
"""

import argparse
import importlib.metadata
import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import psutil
from rich.text import Text

from multigpu.checking.catalog import CourseNotFound, this_course
from multigpu.commands.showing import console
from multigpu.commands.site import INSTALL, find_pandoc
from multigpu.pictures.units import human_bytes

GIB = 2**30
LEAST = (2, 11)  # PyTorch
COLOR = {"ok": "green", "note": "yellow", "problem": "bold red"}


class Remark(NamedTuple):
    """One result. With a ``problem`` the course does not run; with a ``note`` it does."""

    subject: str
    says: str
    status: str = "ok"
    advice: str | None = None


def doctor_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu doctor``."""
    parser.add_argument("--port", type=int, default=8888, help="the port to check (default 8888)")


def run_doctor(args: argparse.Namespace) -> int:
    """Print every remark. Returns 0 when the course runs here, else 1."""
    out, problems = console(), 0
    for remark in examine(args.port):
        status = Text(f"{remark.status:<8} ", COLOR[remark.status])
        out.print(status + Text(f"{remark.subject:<11}{remark.says}"))
        if remark.advice:
            out.print(Text(f"{'':20}-> {remark.advice}"))
        problems += remark.status == "problem"
    if problems:
        out.print(f"\n{problems} problem{'s'[: problems > 1]} to solve first; see above.")
        return 1
    out.print("\nThis machine can run the course.")
    return 0


def examine(port: int) -> Iterator[Remark]:
    """Run all checks, one remark at a time, so that the reader sees each as soon as it is known."""
    for check in (python, pytorch, graphics, backends, packages):
        yield from check()
    yield from free_port(port)
    for check in (disk, memory, folder, hidden):
        yield from check()


def python() -> Iterator[Remark]:
    """Python itself; pip installs the course with 3.11 and newer only."""
    yield Remark("Python", f"{platform.python_version()} in {sys.prefix}")


def pytorch() -> Iterator[Remark]:
    """PyTorch: its version, and whether its build fits this machine's GPUs."""
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Remark("PyTorch", f"cannot be imported: {error}", "problem", INSTALL)
        return
    cuda = torch.version.cuda
    says = f"{torch.__version__}, {f'CUDA {cuda}' if cuda else 'CPU'} build"
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < LEAST:
        yield Remark("PyTorch", says, "problem", "The course needs 2.11 or newer: " + INSTALL)
    elif not cuda and Path("/proc/driver/nvidia/gpus").is_dir():
        advice = "Virtual GPUs work. To use the real ones, delete .venv and run make start again."
        yield Remark("PyTorch", f"{says}, but there is an NVIDIA GPU", "note", advice)
    elif cuda and not torch.cuda.is_available() and shutil.which("nvidia-smi"):
        advice = "Virtual GPUs work. Real ones need a driver that supports this CUDA version."
        yield Remark("PyTorch", f"{says}, which cannot use the NVIDIA driver", "note", advice)
    else:
        yield Remark("PyTorch", says)


def graphics() -> Iterator[Remark]:
    """A line for each GPU, with what it is doing."""
    from multigpu.devices.monitor import one_line, snapshot

    real = snapshot()
    if not real:
        yield Remark("GPUs", "no NVIDIA GPU; the course uses virtual ones")
    for gpu in real:
        yield Remark("GPUs", one_line(gpu))


def backends() -> Iterator[Remark]:
    """The communication backends: gloo everywhere, NCCL between GPUs."""
    if find_spec("torch") is None:
        return
    from torch import cuda, distributed

    if distributed.is_nccl_available():
        yield Remark("backends", "gloo and NCCL")
    elif cuda.device_count() > 1:
        advice = "Processes on GPUs communicate through gloo, which is slow there."
        yield Remark("backends", "gloo; no NCCL in this build of PyTorch", "note", advice)
    else:
        yield Remark("backends", "gloo (NCCL is for NVIDIA GPUs)")


def packages() -> Iterator[Remark]:
    """JupyterLab for the notebooks, Sphinx and pandoc for the pages."""
    for name, use in (("jupyterlab", "the notebooks"), ("sphinx", "the pages")):
        if find_spec(name):
            yield Remark(name, importlib.metadata.version(name))
        else:
            yield Remark(name, f"not installed; {use} need it", "problem", INSTALL)
    if pandoc := find_pandoc():
        yield Remark("pandoc", pandoc)
    else:
        advice = "pip install pypandoc_binary"
        yield Remark("pandoc", "not found; the pages need it", "problem", advice)


def free_port(port: int) -> Iterator[Remark]:
    """The port of ``multigpu start``."""
    if port_is_free(port):
        yield Remark("port", f"{port} is free")
    else:
        advice = f'Choose another: make start ARGS="--port {port + 1}".'
        yield Remark("port", f"{port} is in use, perhaps by the course itself", "note", advice)


def port_is_free(port: int) -> bool:
    """Whether a server may listen on ``port`` of this machine's own interface."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True


def disk() -> Iterator[Remark]:
    """Free space for the built pages, checkpoints and data."""
    free = shutil.disk_usage(Path.cwd()).free
    says = f"{human_bytes(free)} free"
    if free < GIB:
        yield Remark("disk", says, "problem", "Free some space: lessons write up to 1 GiB.")
    else:
        yield Remark("disk", says)


def memory() -> Iterator[Remark]:
    """Main memory, and the part of it for shared memory (small in many containers)."""
    here = psutil.virtual_memory()
    says = f"{human_bytes(here.available)} of {human_bytes(here.total)} available"
    if here.available < 2 * GIB:
        yield Remark("memory", says, "note", "Close other programs; four ranks need about 2 GiB.")
    else:
        yield Remark("memory", says)
    shared = Path("/dev/shm")
    if shared.is_dir() and shutil.disk_usage(shared).total < GIB // 4:
        says = f"only {human_bytes(shutil.disk_usage(shared).total)} in /dev/shm"
        yield Remark("memory", says, "note", "In a container: docker run --shm-size=1g ...")


def folder() -> Iterator[Remark]:
    """The repository, where answers are written."""
    try:
        root = this_course().root
    except CourseNotFound as problem:
        yield Remark("folder", str(problem), "problem", "cd into the folder that you cloned.")
        return
    closed = [name for name in (".", "exercises", "docs") if not os.access(root / name, os.W_OK)]
    if closed:
        advice = (
            "Clone the repository into a folder that you can write to, or ask for write access."
        )
        yield Remark("folder", f"no write access to {root / closed[0]}", "problem", advice)
    else:
        yield Remark("folder", str(root))


def hidden() -> Iterator[Remark]:
    """Files of this folder that Python imports instead of a package; PyTorch's tutorial has one."""
    for name in ("multigpu", "torch"):
        file = Path.cwd() / f"{name}.py"
        if file.is_file():
            says = f"`import {name}` in this folder imports {file} and not the package"
            yield Remark("names", says, "problem", f"Rename it: mv {file.name} my_{file.name}")
