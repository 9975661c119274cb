"""A whole comparison, small: what came out of real runs in processes of their own."""

import re
import time

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from multigpu.ranks import RankError
from multigpu.scaling import Workload, compare
from multigpu.training.config import TrainConfig

pytestmark = pytest.mark.slow


def rows(count, *, seed):
    """Images of noise: they take no time to load where nothing is collected but names."""
    numbers = torch.Generator().manual_seed(seed)
    images = torch.rand(count, 1, 8, 8, generator=numbers)
    return TensorDataset(images, torch.randint(10, (count,), generator=numbers))


TRAIN, TEST = rows(150, seed=1), rows(40, seed=2)
CONFIG = TrainConfig(batch_size=12, optimizer="sgd", learning_rate=0.1)


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


WEIGHTS = 4 * sum(parameter.numel() for parameter in network().parameters())  # bytes
SMALL = Workload(name="small", model=network, train=TRAIN, test=TEST, config=CONFIG)


@pytest.fixture(scope="module")
def heard():
    return []


@pytest.fixture(scope="module")
def compared(heard):
    return compare(SMALL, gpus=[3], steps=4, warmup=1, repeats=1, tell=heard.append)


def test_every_mode_has_a_row_and_was_measured_in_turn(compared, heard):
    assert all(len(row.rounds) == 1 and min(row.rounds) > 0 < row.first for row in compared.rows)
    names = [str(row.candidate) for row in compared.rows]
    assert names == ["single", "dp on 3", "ddp on 3"]
    for line, name in zip(heard[:3], names, strict=True):
        assert re.fullmatch(rf"\D*1\D*1\W*{name}", line)


def test_all_modes_train_the_same(compared):
    assert compared.trained_alike
    assert compared.largest_difference < 1e-5
    accuracies = {row.figures["accuracy"] for row in compared.rows}
    assert len(accuracies) == 1
    assert compared.metric == "accuracy"


def test_a_pipeline_sends_activations_and_their_gradients_and_nothing_else_is_counted():
    """Wherever it is cut: 16 numbers of each row, there and back."""
    inputs = torch.rand(60, 16, generator=torch.Generator().manual_seed(1))
    layers = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
    train = TensorDataset(inputs, torch.arange(60) % 16)
    work = Workload(name="layers", model=layers, train=train, config=CONFIG)
    compared = compare(work, modes=["pipeline"], gpus=[2], steps=2, warmup=1, repeats=1)
    assert compared.row("pipeline", 2).traffic == 2 * 12 * 16 * 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is counted where ranks are on the CPU")
def test_memory_and_bytes_are_counted(compared):
    assert [len(row.peak_bytes) for row in compared.rows] == [1, 3, 3]
    assert all(min(row.peak_bytes) > WEIGHTS for row in compared.rows)
    gathered = 2 * (12 - 4) * 10 * 4  # outputs of two chunks to GPU 0, their gradients back
    assert compared.row("dp", 3).traffic == 2 * 2 * WEIGHTS + gathered
    assert compared.row("ddp", 3).traffic == 2 * (3 - 1) * WEIGHTS
    assert compared.row("single").traffic is None
    shares = [row.communication for row in compared.rows]
    assert shares[:2] == [None, None]
    assert 0 < shares[2] <= 1


class SlowAtFirst(nn.Linear):
    """As a kernel that is chosen at its first use."""

    used = False

    def forward(self, images):
        if not self.used:
            time.sleep(0.5)
        self.used = True
        return super().forward(images.flatten(1))


def test_the_first_step_is_the_first_time_that_the_model_computes(monkeypatch):
    def measured():
        slow = Workload(name="slow", model=SlowAtFirst(64, 10), train=TRAIN, config=CONFIG)
        how = {"steps": 2, "warmup": 1, "repeats": 2, "count": False}
        return compare(slow, modes=["single"], gpus=[1], **how).single

    thorough = measured()
    monkeypatch.setenv("MULTIGPU_TIMES", "rough")
    rough = measured()
    assert (len(thorough.rounds), len(rough.rounds)) == (2, 1)
    assert rough.figures == thorough.figures
    assert rough.first > 0.5 > rough.step_seconds


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, images):
        raise RuntimeError("no idea what to do with these")


def test_a_model_that_fails_is_told_with_its_own_error():
    broken = Workload(name="broken", model=Broken(), train=TRAIN, config=CONFIG)
    with pytest.raises(RankError, match="no idea what to do with these"):
        compare(broken, modes=["single"], gpus=[1], steps=1, warmup=0, repeats=1)


@pytest.mark.multi_gpu
def test_on_real_gpus_the_rows_name_them():
    found = compare(SMALL, gpus=[2], steps=4, warmup=1, repeats=1)
    name = torch.cuda.get_device_name(0)
    assert name in found.row("ddp", 2).where
    assert name in found.row("dp", 2).where
    assert found.trained_alike
