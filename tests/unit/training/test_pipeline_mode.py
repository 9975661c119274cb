"""A pipeline trains, evaluates, saves and goes on as one device does, whatever it is divided into.

All in float64 where figures are compared: then rounding hides nothing.
"""

import functools
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from multigpu import run_ranks
from multigpu.training import TrainConfig, Trainer
from multigpu.training.models import LargeCNN, SmallGPT, next_byte_loss
from multigpu.training.pipeline import as_arguments, without_padding

pytestmark = pytest.mark.slow

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
    return Trainer(LargeCNN().double(), config, images(14), images(5))


class Nervous(nn.Sequential):
    """Dropout, and statistics of BatchNorm: what a run that goes on has to bring back, too."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU()),
            *(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 10)),
        )


def nervous(mode: str, rows: int = 36, **settings) -> Trainer:
    torch.manual_seed(4)
    pixels, digits = images(rows).tensors
    data = TensorDataset(pixels.flatten(1).float(), digits)
    settings = {"batch_size": 12, "epochs": 3, "progress": False} | settings
    return Trainer(Nervous(), TrainConfig(mode=mode, **settings), data)


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
RUNS = {  # by the number of ranks: how single is trained, and what the pipeline has besides
    1: [({}, {"micro_batches": 5}), (CLIPPED, INTERLEAVED | {"micro_batches": 3})],
    2: [({}, INTERLEAVED), (CLIPPED, {"micro_batches": 5}), (PARTS, GPIPE | {"micro_batches": 1})],
    3: [(CLIPPED, GPIPE | {"micro_batches": 7}), (PARTS, {"micro_batches": 3})],
    4: [({}, {})],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("pipelines")


@functools.cache
def ranks_of(world_size: int, folder: Path):
    """All that is looked at with this number of ranks, in one start of them."""

    def on_a_rank():
        rank = dist.get_rank()
        # Rank 0's first weights count, whatever the others have.
        trainers = [gpt("pipeline", seed=4 + rank, **a, **b) for a, b in RUNS[world_size]]
        return SimpleNamespace(
            said=[(each.describe(), each.strategy.details) for each in trainers],
            trained=[outcome(each) for each in trainers],
            held=sum(each.numel() for each in trainers[0].strategy.plain.parameters()),
            besides={2: on_two_ranks, 3: on_three_ranks, 4: on_four_ranks}.get(world_size, str)(
                *([folder] if world_size > 1 else [])
            ),
        )

    return run_ranks(on_a_rank, world_size, show=False)


def on_two_ranks(folder: Path) -> SimpleNamespace:
    """A run in one go and in two, one that is cut elsewhere, bfloat16, what is refused."""

    def run(name, steps=None):
        trainer = nervous("pipeline", folder=folder / name, max_steps=steps)
        return outcome(trainer), trainer.strategy.plan.places

    whole = run("whole")
    if dist.get_rank() == 0:  # the clock could choose other places for the next one
        (folder / "parts").mkdir()
        shutil.copy(folder / "whole" / "stages.json", folder / "parts")
    dist.barrier()
    run("parts", 5)
    parts = run("parts")
    if dist.get_rank() == 0:
        plan = json.loads((folder / "parts" / "stages.json").read_text())
        plan["places"][1] = 7  # before the last Linear
        (folder / "parts" / "stages.json").write_text(json.dumps(plan))
    dist.barrier()
    elsewhere = nervous("pipeline", folder=folder / "parts").strategy.plan.places
    half = gpt("pipeline", dtype=torch.float32, precision="bfloat16", epochs=1)
    return SimpleNamespace(
        whole=whole,
        parts=parts,
        elsewhere=elsewhere,
        bfloat16=half.fit().last["loss"],
        kinds={flow.dtype for flow in half.strategy.flows[-1]},
        refused=[refusal(model) for model in (Branching(), nn.Sequential(nn.Linear(64, 10)))],
    )


def on_three_ranks(folder: Path):
    gpt("pipeline", folder=folder / "moved", max_steps=3, **CLIPPED).fit()
    return outcome(cnn("pipeline", micro_batches=4))


def on_four_ranks(folder: Path):
    return outcome(gpt("pipeline", folder=folder / "moved", **CLIPPED))


class Branching(nn.Module):
    """It decides by the numbers in a tensor, so that there is no one list of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, pixels):
        hidden = self.one(pixels)
        return self.other(hidden if hidden.sum() > 0 else -hidden)


def refusal(model: nn.Module) -> str:
    pixels, digits = images(12).tensors
    data = TensorDataset(pixels.flatten(1).float(), digits)
    with pytest.raises(ValueError, match="cut") as said:
        Trainer(model, TrainConfig(mode="pipeline", batch_size=12), data)
    return str(said.value)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_tied_gpt_trains_and_evaluates_as_on_one_device(world_size, folder):
    """Micro-batches of unequal size, a last batch of one row, all schedules, several steps."""
    ranks = ranks_of(world_size, folder)
    for number, (run, _) in enumerate(RUNS[world_size]):
        assert_same([rank.trained[number] for rank in ranks], alone(**run))


def test_a_cnn_trains_and_evaluates_as_on_one_device(folder):
    assert_same([rank.besides for rank in ranks_of(3, folder)], outcome(cnn("single")))


@pytest.mark.slow
def test_a_run_goes_on_in_another_mode_and_with_another_number_of_stages(folder):
    """Within epochs, from 3 stages to one device and on to 4 stages."""
    ranks_of(3, folder)
    gpt("single", folder=folder / "moved", max_steps=6, **CLIPPED).fit()
    saved = torch.load(folder / "moved" / "latest.pt")
    plain = gpt("single", **CLIPPED)
    assert list(saved["model"]) == list(plain.strategy.plain.state_dict())
    assert len(saved["optimizer"]["state"]) == len(plain.optimizer.param_groups[0]["params"])
    ranks = ranks_of(4, folder)
    assert_same([rank.besides for rank in ranks], alone(**CLIPPED))
    assert_same([rank.trained[0] for rank in ranks], alone())


def test_a_run_goes_on_bit_for_bit_and_is_cut_where_it_was(folder):
    """Dropout draws on each rank for the layers of its stage."""
    for rank in ranks_of(2, folder):
        ((whole, rows), places), ((parts, again), same_places) = (
            rank.besides.whole,
            rank.besides.parts,
        )
        assert places == same_places
        assert rows == again
        assert all(
            value.is_meta or torch.equal(value, parts[name]) for name, value in whole.items()
        )
        assert rank.besides.elsewhere == [0, 7, 8]


def test_each_rank_writes_its_stage_into_a_sharded_checkpoint(tmp_path):
    def on_a_rank(**settings):
        return outcome(gpt("pipeline", checkpoints="sharded", **settings))

    def in_two_parts():
        on_a_rank(folder=tmp_path, max_steps=3)
        return on_a_rank(folder=tmp_path)

    assert_same(run_ranks(in_two_parts, 2, show=False), alone())


def test_a_rank_holds_its_stages_alone(folder):
    ranks = ranks_of(3, folder)
    whole = sum(each.numel() for each in SmallGPT(block=BLOCK, width=16, heads=2).parameters())
    assert sum(rank.held for rank in ranks) == whole + 256 * 16, "the tied matrix is there twice"
    assert max(rank.held for rank in ranks) < whole
    assert all(value.is_meta for weights, _ in ranks[1].trained for value in weights.values())


def test_it_says_how_the_model_is_divided(folder):
    for rank in ranks_of(2, folder):
        wheres, shares = zip(*(line.split("; ")[:2] for line, _ in rank.said), strict=True)
        assert ["4 stages, interleaved" in where for where in wheres] == [True, False, False]
        assert ["2 stages, gpipe" in where for where in wheres] == [False, False, True]
        numbers = [re.findall(r"\d+", share) for share in shares]
        assert numbers == [["12", "4", "3"], ["12", "5", "3"], ["12", "2", "6"]]
        assert ["at most" in share for share in shares] == [False, True, False]
        assert all("bubble" in line for line, _ in rank.said)
        assert all("stage" in table and "parameters" in table for _, table in rank.said)
        assert ["a rank with 2" in table for _, table in rank.said] == [True, False, False]


def test_bfloat16_is_computed_in_every_stage(folder):
    wanted = gpt("single", dtype=torch.float32, precision="bfloat16", epochs=1).fit().last["loss"]
    for rank in ranks_of(2, folder):
        assert rank.besides.bfloat16 == pytest.approx(wanted, rel=1e-3)
        assert rank.besides.kinds == {torch.bfloat16}


def test_every_rank_refuses_a_model_that_cannot_be_cut_so(folder):
    for rank in ranks_of(2, folder):
        branching, short = rank.besides.refused
        assert "hidden.sum() > 0" in branching
        assert re.search(r"2 stages\b.*\b1 piece\b", short)


def test_no_rank_waits_for_a_rank_0_that_cannot_measure():
    def on_a_rank():
        from multigpu.training import pipeline

        def cut(*_, **__):
            raise MemoryError("no room for 1 GiB")

        pipeline.cut = cut
        with pytest.raises((MemoryError, ValueError), match="no room for 1 GiB"):
            cnn("pipeline")

    run_ranks(on_a_rank, 2, timeout=60, show=False)


def test_what_cannot_be_a_pipeline_is_refused_with_the_next_thing_to_try():
    def on_a_rank():
        for settings in ({"stages_per_rank": 2}, {"pipeline_schedule": "interleaved"}):
            with pytest.raises(ValueError, match="'interleaved' has two or more stages per rank"):
                cnn("pipeline", **settings)
        with pytest.raises(ValueError, match="microbatches"):  # PyTorch's own words
            cnn("pipeline", micro_batches=1)

    run_ranks(on_a_rank, 2, show=False)
    with pytest.raises(ValueError, match=r"mode='pipeline'.*torchrun"):
        gpt("pipeline")
    with pytest.raises(ValueError, match=r"micro_batches=8.*mode='single'.*mode='pipeline'"):
        gpt("single", micro_batches=8)
    with pytest.raises(ValueError, match="pixels"):
        as_arguments({"pixels": torch.zeros(3, 4)})


def test_the_padding_of_a_micro_batch_is_dropped():
    assert without_padding(torch.arange(4), 3, size=4).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"\(4, 3\).*first dimension"):
        without_padding(torch.zeros(4, 3), 1, size=2)
