"""The ring of solutions/collectives.py against the all_reduce of the backend, by size.

Run with `make bench`.  Medians are printed, and ratios; nothing is asserted about times.
"""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from multigpu import run_ranks

from .interleaved import table, times_in_turn

SOLUTIONS = str(Path(__file__).resolve().parents[2] / "solutions")
ROUNDS = {1: 41, 25: 15, 100: 7}  # by megabytes: small ones vary more


def in_turn(megabytes: int) -> dict[str, list[float]]:
    """On each rank: the seconds of summing one tensor."""
    sys.path.append(SOLUTIONS)
    import collectives  # type: ignore[import-not-found]

    tensor = torch.zeros(megabytes * 10**6 // 4)  # zeros stay small, however often they are added
    candidates = {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "ring_all_reduce": lambda: collectives.ring_all_reduce(tensor),
    }
    return times_in_turn(candidates, rounds=ROUNDS[megabytes], meet=dist.barrier)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("megabytes", sorted(ROUNDS))
def test_ring(megabytes, world):
    results = run_ranks(in_turn, world, megabytes, trace=False, show=False, timeout=300)
    title = f"{megabytes} MB of float32, {world} ranks, {results.backend}"
    print(table(title, results[0], against="all_reduce"))
