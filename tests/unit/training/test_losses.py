"""PyTorch's own losses train the same in every mode, also those that are not a mean over rows."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from multigpu import run_ranks, virtual_gpus
from multigpu.training import TrainConfig, Trainer
from multigpu.training.loss import ClassLoss

from .test_trainer_modes import COMMON, OF_CLASSES, ROWS, Small, data, on_one_device


def trained(loss_fn, mode, **settings):
    """Weights, and the losses of training and evaluation."""
    config = TrainConfig(mode=mode, **COMMON | settings)
    trainer = Trainer(Small(), config, data(), data(7), loss_fn=loss_fn, metrics=())
    rows = trainer.fit().rows
    weights = {name: value.cpu() for name, value in trainer.strategy.model_state().items()}
    return weights, [row[name] for row in rows for name in ("loss", "eval_loss")]


def assert_trained_as(scenario, found):
    weights, rows = on_one_device(scenario)
    for name, value in weights.items():
        torch.testing.assert_close(found[0][name], value, rtol=1e-9, atol=1e-11, msg=name)
    losses = [row[name] for row in rows for name in ("loss", "eval_loss")]
    assert found[1] == pytest.approx(losses, rel=1e-6)


@pytest.mark.parametrize(
    "loss_fn",
    [
        nn.CrossEntropyLoss(reduction="sum"),
        functools.partial(F.cross_entropy, reduction="sum"),
    ],
)
def test_pytorchs_losses_that_are_sums_are_refused_where_a_batch_is_divided(loss_fn):
    trained(loss_fn, "single")
    with pytest.raises(ValueError, match=r"is not a mean over rows.*reduction='sum'"):
        trained(loss_fn, "single", accumulation_steps=3)


def test_weights_of_classes_may_be_on_the_cpu():
    loss_fn = nn.CrossEntropyLoss(weight=OF_CLASSES)
    with virtual_gpus(2):
        found = trained(loss_fn, "dp")
    assert_trained_as("weighted", found)


def test_pytorchs_losses_of_classes_need_not_be_rewritten():
    """Not a mean over rows, and yet the same in parts, on ranks and in an evaluation."""
    cases = (
        (functools.partial(F.cross_entropy, ignore_index=0), "ignoring"),
        (nn.CrossEntropyLoss(ignore_index=0), "ignoring"),
        (nn.CrossEntropyLoss(weight=OF_CLASSES), "weighted"),
    )

    def on_a_rank():
        return [trained(loss_fn, "ddp") for loss_fn, _ in cases]

    ranks = run_ranks(on_a_rank, 3, show=False)
    for number, (loss_fn, same_as) in enumerate(cases):
        for found in (
            trained(loss_fn, "single"),
            trained(loss_fn, "single", accumulation_steps=3),
            *(rank[number] for rank in ranks),
        ):
            assert_trained_as(same_as, found)


class Masking(TensorDataset):
    """Ignores targets on the way that its tensors do not."""

    def __getitem__(self, index):
        left, right, targets = super().__getitem__(index)
        return (left, right), targets.where(left[..., 0] > 0, -100)


@pytest.mark.slow
def test_the_default_loss_ignores_rows_alike_in_every_mode():
    """The default: cross_entropy ignores the target -100, and so do the metrics."""
    left, right, targets = data().tensors
    rows = Masking(left, right, targets.where(torch.arange(ROWS) % 3 > 0, -100))

    def figures(mode, **settings):
        config = TrainConfig(mode=mode, **COMMON | settings)
        last = Trainer(Small(), config, rows, rows, metrics=("accuracy", "recall@2")).fit().last
        return {name: last[name] for name in last if name.endswith(("loss", "accuracy", "@2"))}

    alone = figures("single")
    assert figures("single", accumulation_steps=4) == pytest.approx(alone, rel=1e-9)
    for found in run_ranks(lambda: [figures("ddp"), figures("zero3")], 2, show=False):
        assert found[0] == pytest.approx(alone, rel=1e-9)
        assert found[1] == pytest.approx(alone, rel=1e-9)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"ignore_index": 2},
        {"weight": OF_CLASSES, "ignore_index": 1},
        {"weight": OF_CLASSES, "label_smoothing": 0.3, "ignore_index": 0},
        {"label_smoothing": 0.3},
    ],
)
def test_sum_and_weight_are_what_pytorchs_mean_divides(given):
    torch.manual_seed(0)
    outputs, targets = torch.randn(9, 3, dtype=torch.float64), torch.arange(9) % 3
    for loss_fn in (nn.CrossEntropyLoss(**given), functools.partial(F.cross_entropy, **given)):
        total, weight = ClassLoss.of(loss_fn)(outputs, targets)
        torch.testing.assert_close(total / weight, loss_fn(outputs, targets))
    shares = targets.eq(torch.arange(3)[:, None]).T.double()  # targets may be a share per class
    assert torch.equal(
        ClassLoss.of(F.cross_entropy)(outputs, shares), F.cross_entropy(outputs, shares)
    )
