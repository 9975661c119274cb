"""The largest batch that fits: found by trying."""

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from multigpu import RankError
from multigpu.scaling import Workload
from multigpu.training.config import TrainConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "docs" / "measurements"))

from largest_batch import Trials, largest, largest_batches


@pytest.mark.parametrize("guess", [-3, 1, 6, 7, 8, 20])
def test_the_largest_is_found_from_any_guess(guess):
    tried = []

    def fits(rows):
        tried.append(rows)
        return rows <= 7

    assert largest(fits, guess=guess) == 7
    assert {7, 8} <= set(tried)


def workload(model):
    rows = torch.utils.data.TensorDataset(torch.rand(64, 512), torch.zeros(64, dtype=torch.int64))
    return Workload(name="wide", model=model, train=rows, config=TrainConfig(optimizer="adamw"))


def test_a_rank_trains_what_fits_and_no_more():
    trials = Trials(workload(partial(nn.Linear, 512, 8)), "ddp", 1)
    assert trials.fits(2, 200_000)  # weights, gradients and AdamW's state: 65,664 bytes
    assert not trials.fits(60, 200_000)  # two batches of inputs alone: 245,760


def test_all_modes_are_searched_and_timed(monkeypatch):
    def run(self, rows, *, memory=None, steps=2, warmup=0):
        each = {"ddp": 3000, "zero3": 1000}[self.mode]
        if memory is not None and memory < each * rows:
            raise RankError("exception", [0], "OutOfMemoryError: ...")
        return SimpleNamespace(memory=[each * rows] * 2)

    monkeypatch.setattr(Trials, "run", run)
    monkeypatch.setattr(Trials, "seconds", lambda self, rows: float(rows))
    work = workload(partial(nn.Linear, 512, 8))
    ddp, zero3 = largest_batches(work, ["ddp", "zero3"], ranks=2, memory=9500, repeats=3)
    assert (ddp.rows, ddp.batch_size, ddp.peak, ddp.common_peak) == (3, 6, 9000, 9000)
    assert (zero3.rows, zero3.batch_size, zero3.peak, zero3.common_peak) == (9, 18, 9000, 3000)
    assert zero3.rounds == (9.0,) * 3
    assert zero3.epoch_seconds == 9 * 64 / 18
