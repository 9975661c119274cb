"""Reproducible random numbers: a seed for each rank, and the state of every generator.

If every generator that a training step may use is restored on every rank, a resumed run draws the
same numbers. The states are tensors and plain numbers, so that a checkpoint loads with
`weights_only=True`, which runs no code from it.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy
import torch

# cuBLAS reads it at its first call: https://docs.nvidia.com/cuda/cublas, "reproducibility"
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


def seed_rank(seed: int, rank: int) -> None:
    """Seed this rank's random numbers: dropout must differ from rank to rank.

    The order of rows does not come from here: all ranks must draw the same one (data/feeds.py).
    """
    random.seed(seed + rank)
    torch.manual_seed(seed + rank)  # the CPU's and every GPU's
    numpy.random.seed((seed + rank) % 2**32)


def collect(devices: Iterable[torch.device] = ()) -> dict[str, Any]:
    """The states of this process's generators: torch's, Python's and NumPy's.

    `devices`: those that this rank computes on; the order of the GPUs among them counts.
    """
    kind, keys, *rest = numpy.random.get_state()
    return {
        "torch": torch.get_rng_state(),  # (5056,) bytes
        "cuda": [torch.cuda.get_rng_state(each) for each in devices if each.type == "cuda"],
        "python": random.getstate(),
        "numpy": (str(kind), numpy.asarray(keys).tolist(), *rest),
    }


def restore(state: dict[str, Any], *, devices: Iterable[torch.device] = ()) -> None:
    """Restore this process's generators to what `collect` returned.

    GPUs are matched in order: the state of the first one goes to the first of `devices`, whatever
    its number. States of GPUs that do not exist here are left out.
    """
    torch.set_rng_state(state["torch"])
    gpus = [each for each in devices if each.type == "cuda"]
    for device, saved in zip(gpus, state["cuda"], strict=False):
        torch.cuda.set_rng_state(saved, device)
    random.setstate(state["python"])
    numpy.random.set_state(state["numpy"])


@contextlib.contextmanager
def random_numbers_kept(device: torch.device) -> Iterator[None]:
    """Restore the random numbers after the block, in which a user's code may draw some: a data set,
    a model or a metric. (Feeds draw from generators of their own.)"""
    before = collect([device])
    try:
        yield
    finally:
        restore(before, devices=[device])


@contextlib.contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Use only deterministic algorithms inside the block; afterwards everything is as before."""
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    workspace = os.environ.get(CUBLAS)
    os.environ.setdefault(CUBLAS, ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
        if workspace is None:
            del os.environ[CUBLAS]
