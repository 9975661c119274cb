"""Randomness that can be repeated: seeds of each rank, and deterministic algorithms."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator

import torch

# cuBLAS reads it at its first call: https://docs.nvidia.com/cuda/cublas, "reproducibility"
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


def seed_rank(seed: int, rank: int) -> None:
    """Seed this rank's random numbers: dropout must differ from rank to rank.

    The order of rows does not come from here: all ranks must draw the same one (data/rows.py).
    """
    random.seed(seed + rank)
    torch.manual_seed(seed + rank)  # the CPU's and every GPU's
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed((seed + rank) % 2**32)


@contextlib.contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Use deterministic algorithms alone inside the block; afterwards everything is as before."""
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
