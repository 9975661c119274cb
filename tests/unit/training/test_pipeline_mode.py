"""A pipeline trains, evaluates, saves and goes on as one device does, whatever it is divided into.

All in float64 where figures are compared: then rounding hides nothing.
"""

import functools
import io
from contextlib import redirect_stderr

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from multigpu import RankError, run_ranks
from multigpu.training import TrainConfig, Trainer
from multigpu.training.launch import Launch
from multigpu.training.models import LargeCNN, SmallGPT
from multigpu.training.models.small_gpt import next_byte_loss
from multigpu.training.strategies.pipelining.micro_batches import Layout

ROWS, BATCH, BLOCK = 37, 12, 8  # in each epoch 12, 12, 12 rows and one row
INTERLEAVED = {"pipeline_schedule": "interleaved", "stages_per_rank": 2}
GPIPE = {"pipeline_schedule": "gpipe"}


def text(rows: int = ROWS) -> TensorDataset:
    generator = torch.Generator().manual_seed(rows)
    numbers = torch.randint(0, 256, (rows, BLOCK + 1), generator=generator)
    return TensorDataset(numbers[:, :-1], numbers[:, 1:])


def images(rows: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(rows)
    pixels = torch.rand(rows, 1, 8, 8, generator=generator, dtype=torch.float64)
    return TensorDataset(pixels, torch.randint(0, 10, (rows,), generator=generator))


def gpt(mode: str, *, seed: int = 4, dtype: torch.dtype = torch.float64, **settings) -> Trainer:
    """A Trainer of a GPT whose embedding and last layer are one matrix; not yet trained."""
    torch.manual_seed(seed)
    model = SmallGPT(block=BLOCK, width=16, depth=4, heads=2).to(dtype)
    config = TrainConfig(
        mode=mode,
        **{"batch_size": BATCH, "epochs": 2, "learning_rate": 0.01, "progress": False} | settings,
    )
    return Trainer(model, config, text(), text(7), loss_fn=next_byte_loss)


def cnn(mode: str, **settings) -> Trainer:
    torch.manual_seed(4)
    config = TrainConfig(mode=mode, batch_size=6, epochs=1, optimizer="sgd", **settings)
    return Trainer(LargeCNN().double(), config, images(14), images(5), metrics=["accuracy"])


def outcome(trainer: Trainer) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """Weights (on rank 0) and history after training; without what is measured in seconds."""
    history = trainer.fit()
    measured = ("seconds", "rows_per_second", "gpu")
    rows = [
        {name: value for name, value in row.items() if not name.startswith(measured)}
        for row in history.rows
    ]
    return {name: value.clone() for name, value in trainer.strategy.model_state().items()}, rows


def assert_same(ranks, expected) -> None:
    """Rank 0 has the weights, all ranks have the very same history."""
    weights, rows = ranks[0]
    assert list(weights) == list(expected[0])
    for name, value in expected[0].items():
        torch.testing.assert_close(weights[name], value, rtol=1e-9, atol=1e-11, msg=name)
    for row, wanted in zip(rows, expected[1], strict=True):
        assert row == pytest.approx(wanted, rel=1e-9)
    assert all(each == rows for _, each in ranks)


@functools.cache
def alone(**settings):
    """What a pipeline is compared with."""
    return outcome(gpt("single", **settings))


CLIPPED = {"clip_norm": 0.1, "weight_decay": 0.01}
PARTS = {"accumulation_steps": 2, "schedule": "cosine", "warmup_steps": 2}
WORLDS = {
    1: [({}, {"micro_batches": 5}), (CLIPPED, INTERLEAVED | {"micro_batches": 3})],
    2: [({}, INTERLEAVED), (CLIPPED, {"micro_batches": 5}), (PARTS, GPIPE | {"micro_batches": 1})],
    3: [(CLIPPED, GPIPE | {"micro_batches": 7}), (PARTS, {"micro_batches": 3})],
    4: [({}, {}), (CLIPPED, GPIPE), (CLIPPED, INTERLEAVED | {"balance": "layers"})],
}


@pytest.mark.parametrize("world_size", WORLDS)
def test_a_tied_gpt_trains_and_evaluates_as_on_one_device(world_size):
    """Micro-batches of unequal size, a last batch of one row, all schedules, several steps."""

    def on_a_rank():
        return [outcome(gpt("pipeline", **run, **how)) for run, how in WORLDS[world_size]]

    ranks = run_ranks(on_a_rank, world_size, show=False)
    for number, (run, _) in enumerate(WORLDS[world_size]):
        assert_same([each[number] for each in ranks], alone(**run))
    for values, _ in ranks[-1] if world_size > 1 else ():
        assert all(value.is_meta for value in values.values())


def test_a_cnn_trains_and_evaluates_as_on_one_device():
    ranks = run_ranks(lambda: outcome(cnn("pipeline", micro_batches=4)), 3, show=False)
    assert_same(ranks, outcome(cnn("single")))


def test_ranks_begin_with_the_weights_of_rank_0_and_keep_their_stages_alone():
    def on_a_rank():
        trainer = gpt("pipeline", seed=4 + Launch.here().rank)
        held = sum(each.numel() for each in trainer.strategy.plain.parameters())
        return outcome(trainer), held, trainer.strategy.num_parameters, trainer.describe()

    ranks = run_ranks(on_a_rank, 2, show=False)
    assert_same([rank[0] for rank in ranks], alone())
    whole = sum(each.numel() for each in SmallGPT(block=BLOCK, width=16, heads=2).parameters())
    assert {rank[2] for rank in ranks} == {whole}
    assert sum(rank[1] for rank in ranks) == whole + 256 * 16, "the tied matrix is there twice"
    assert max(rank[1] for rank in ranks) < 0.8 * whole
    assert "2 stages, 1f1b; batch 12 = 4 micro-batches × 3 rows" in ranks[0][3]
    assert "bubble" in ranks[0][3]
