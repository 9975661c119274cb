"""What a Trainer is given by mistake is said before anything is computed, and nothing is lost."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from multigpu import run_ranks
from multigpu.training import TrainConfig, Trainer
from multigpu.training.checkpoint import CheckpointError


def rows(count: int = 12) -> TensorDataset:
    numbers = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(count, 3, generator=numbers), torch.arange(count) % 2)


def trainer(data: Dataset | None = None, eval_data: Dataset | None = None, **settings) -> Trainer:
    torch.manual_seed(0)
    how = {name: settings.pop(name) for name in ("metrics", "loss_fn") if name in settings}
    config = TrainConfig(**{"mode": "single", "batch_size": 4, "epochs": 2, **settings})
    return Trainer(nn.Linear(3, 2), config, data or rows(), eval_data, **how)


@pytest.mark.parametrize(
    ("targets", "metrics", "words"),
    [
        (torch.arange(12.0), "accuracy", r"torch\.float32.*metrics=\(\).*\.long\(\)"),
        (torch.arange(12)[:, None] % 2, "accuracy", r"\(4, 2\).*\(4, 1\)"),
    ],
)
def test_metrics_that_cannot_work_are_said_before_a_step_is_computed(targets, metrics, words):
    data = TensorDataset(torch.randn(12, 3), targets)
    run = trainer(data, data, loss_fn=lambda outputs, _: outputs.sum(), metrics=metrics)
    before = [each.detach().clone() for each in run.strategy.plain.parameters()]
    with pytest.raises(ValueError, match=words):
        run.fit()
    assert all(map(torch.equal, run.strategy.plain.parameters(), before))


def test_an_evaluation_whose_loss_is_no_number_is_said_once():
    inputs, targets = rows().tensors
    broken = TensorDataset(inputs.where(torch.arange(12)[:, None] != 7, math.nan), targets)
    run = trainer(eval_data=broken)
    with pytest.warns(RuntimeWarning, match="eval_loss of epoch 1 is nan") as said:
        history = run.fit()
    assert len(said) == 1
    assert len(history) == 2


def test_a_loss_that_is_no_number_is_said_once_and_seen_in_the_table():
    run = trainer(loss_fn=lambda outputs, targets: F.cross_entropy(outputs, targets) * math.nan)
    with pytest.warns(RuntimeWarning, match="epoch 1") as said:
        history = run.fit()
    assert len(said) == 1
    assert repr(history).split().count("nan") == 2


def test_items_without_a_target_are_refused():
    with pytest.raises(TypeError, match=r"\(inputs, target\)"):
        trainer(TensorDataset(torch.zeros(5, 3))).fit()


def test_a_run_does_not_go_on_with_other_data(tmp_path):
    """With fewer rows its place in the epoch may lie behind the last step."""
    trainer(folder=tmp_path, max_steps=3, epochs=5).fit()
    with pytest.raises(CheckpointError, match=r"rows of data=12 \(now 4\)"):
        trainer(rows(4), folder=tmp_path, epochs=5).fit()


def longer(folder: Path, epochs: int) -> Trainer:
    mine = trainer(folder=folder, epochs=epochs, schedule="cosine", learning_rate=0.1)
    mine.fit()
    return mine


def test_a_run_made_longer_takes_the_rates_that_its_history_claims(tmp_path, capsys):
    longer(tmp_path, epochs=1)
    used = []
    again = trainer(folder=tmp_path, epochs=2, schedule="cosine", learning_rate=0.1)
    step = again.optimizer.step
    again.optimizer.step = lambda: (used.append(again.optimizer.param_groups[0]["lr"]), step())
    again.fit()
    whole = longer(tmp_path / "whole", epochs=2)
    assert again.history.last["learning_rate"] == whole.history.last["learning_rate"] == used[-1]
    assert len(used) == 3
    assert used[0] == pytest.approx(0.05)  # half way down six steps, not at the end of three
    assert re.search(r"learning rate\b.*\b6 steps", capsys.readouterr().err)


def test_other_frozen_parameters_are_said(tmp_path):
    trainer(folder=tmp_path, max_steps=1).fit()
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    config = TrainConfig(mode="single", batch_size=4, epochs=2, folder=tmp_path)
    with pytest.raises(CheckpointError, match="different parameters"):
        Trainer(model, config, rows()).fit()


class HalfUsed(nn.Module):
    """A model of which a part takes no part."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, inputs):
        return self.used(inputs)


def half_used(mode: str) -> torch.Tensor:
    torch.manual_seed(0)
    model = HalfUsed()
    config = TrainConfig(mode=mode, batch_size=4, epochs=2, find_unused_parameters=mode == "ddp")
    Trainer(model, config, rows()).fit()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def test_a_part_that_takes_no_part_is_found_where_it_is_asked_for():
    for weights_of_rank in run_ranks(half_used, 2, "ddp", show=False):
        torch.testing.assert_close(weights_of_rank, half_used("single"))


def ignoring() -> float:
    """Row 0's target is to be ignored. Nine rows in batches of four: at last a rank has none."""
    inputs, targets = rows(9).tensors
    data = TensorDataset(inputs, targets.index_fill(0, torch.tensor([0]), -100))
    torch.manual_seed(0)
    mine = Trainer(nn.Linear(3, 2), TrainConfig(mode="ddp", batch_size=4, epochs=1), data)
    assert mine.train_feed.order(0)[-1] != 0, "row 0 would stand alone"
    return mine.fit().last["loss"]


def test_a_row_that_does_not_count_cannot_spoil_the_loss():
    assert all(math.isfinite(loss) for loss in run_ranks(ignoring, 2, show=False))


@pytest.mark.parametrize(
    ("loss_fn", "says"),
    [
        (lambda outputs, targets: 3.0, r"\bfloat\b"),
        (lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none"), r"\(4,\)"),
    ],
)
def test_a_loss_that_is_no_mean_is_said(loss_fn, says):
    with pytest.raises(TypeError, match=f"loss_fn.*{says}"):
        trainer(loss_fn=loss_fn).fit()
