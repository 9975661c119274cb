"""A loss that is not a mean over rows trains the same in every mode: it returns a sum and a weight.

Rows with the target 0 are ignored, or classes have weights. With reduction="mean" PyTorch divides
by the weights of the rows that it is given, and each rank and each part of a batch has others.
"""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from multigpu import run_ranks, virtual_gpus
from multigpu.training import TrainConfig, Trainer
from multigpu.training.strategy import ClassLoss

ROWS, BATCH, EPOCHS = 37, 12, 2  # in each epoch 12, 12, 12 rows and one row: ranks without a row
OF_CLASSES = torch.tensor([0.2, 1.0, 5.0], dtype=torch.float64)


def ignoring(outputs, targets):
    return F.cross_entropy(outputs, targets, ignore_index=0, reduction="sum"), (targets != 0).sum()


def weighted(outputs, targets):
    loss = F.cross_entropy(outputs, targets, weight=OF_CLASSES, reduction="sum")
    return loss, OF_CLASSES[targets].sum()


MEANS = {  # of a whole batch: NaN where all of its rows are ignored, which shall count nothing
    ignoring: lambda outputs, targets: F.cross_entropy(outputs, targets, ignore_index=0),
    weighted: lambda outputs, targets: F.cross_entropy(outputs, targets, weight=OF_CLASSES),
}


def data(rows=ROWS):
    generator = torch.Generator().manual_seed(rows)
    inputs = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(0, 3, (rows,), generator=generator))


def model():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)
    ).double()


def trained(loss_fn, mode, **settings):
    """Weights, and the losses of training and evaluation."""
    config = TrainConfig(
        mode=mode, batch_size=BATCH, epochs=EPOCHS, optimizer="sgd", learning_rate=0.2, **settings
    )
    trainer = Trainer(model(), config, data(), data(7), loss_fn=loss_fn, metrics=())
    rows = trainer.fit().rows
    weights = trainer.strategy.model_state()
    return (
        {name: value.cpu() for name, value in weights.items() if not value.is_meta},
        [row[name] for row in rows for name in ("loss", "eval_loss")],
    )


@functools.cache
def by_hand(loss_fn):
    """The same as a loop of a few lines: the whole batch at once, PyTorch's own mean."""
    inputs, targets = data().tensors
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    losses = []
    for epoch in range(EPOCHS):
        mixed = torch.randperm(ROWS, generator=torch.Generator().manual_seed(epoch))
        total = torch.zeros(2, dtype=torch.float64)
        for rows in mixed.split(BATCH):
            optimizer.zero_grad()
            outputs = net(inputs[rows])
            total += torch.stack(
                [each.detach().double() for each in loss_fn(outputs, targets[rows])]
            )
            mean = MEANS[loss_fn](outputs, targets[rows])
            (outputs.sum() * 0 if mean.isnan() else mean).backward()
            optimizer.step()
        held_out, right = data(7).tensors
        losses += [float(total[0] / total[1]), MEANS[loss_fn](net(held_out), right).item()]
    return net.state_dict(), losses


def assert_same(found, loss_fn):
    weights, losses = by_hand(loss_fn)
    for name, value in weights.items():
        torch.testing.assert_close(found[0][name], value, rtol=1e-9, atol=1e-11, msg=name)
    assert found[1] == pytest.approx(losses, rel=1e-6)


@pytest.mark.parametrize("loss_fn", MEANS)
@pytest.mark.parametrize("parts", [1, 3])
def test_one_process_trains_by_sum_and_weight_as_by_the_mean_of_the_whole_batch(loss_fn, parts):
    assert_same(trained(loss_fn, "single", accumulation_steps=parts), loss_fn)
    with virtual_gpus(2):
        found = trained(loss_fn, "dp", accumulation_steps=parts) if loss_fn is ignoring else None
    if found:
        assert_same(found, loss_fn)


@pytest.mark.slow
@pytest.mark.parametrize("loss_fn", MEANS)
@pytest.mark.parametrize(("ranks", "parts"), [(3, 2)])
def test_ranks_train_by_sum_and_weight_as_one_process_does(loss_fn, ranks, parts):
    def on_a_rank():
        return [
            trained(loss_fn, mode, accumulation_steps=parts) for mode in ("ddp", "zero2", "zero3")
        ]

    for modes in run_ranks(on_a_rank, ranks, show=False):
        for found in modes:
            assert_same(found, loss_fn)


@pytest.mark.slow
@pytest.mark.parametrize("loss_fn", MEANS)
def test_a_pipeline_trains_by_sum_and_weight_as_one_process_does(loss_fn):
    def on_a_rank():
        return trained(loss_fn, "pipeline", micro_batches=3, balance="layers")

    found = run_ranks(on_a_rank, 2, show=False)
    assert_same(found[0], loss_fn)
    assert found[1][1] == found[0][1]


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
    assert_same(found, weighted)


@pytest.mark.parametrize(
    ("loss_fn", "same_as"),
    [
        (functools.partial(F.cross_entropy, ignore_index=0), ignoring),
        (nn.CrossEntropyLoss(ignore_index=0), ignoring),
        (nn.CrossEntropyLoss(weight=OF_CLASSES), weighted),
    ],
)
def test_pytorchs_losses_of_classes_need_not_be_rewritten(loss_fn, same_as):
    """Not a mean over rows, and yet the same in parts, on ranks and in an evaluation."""
    assert_same(trained(loss_fn, "single"), same_as)
    assert_same(trained(loss_fn, "single", accumulation_steps=3), same_as)

    def on_a_rank():
        return trained(loss_fn, "ddp")

    for found in run_ranks(on_a_rank, 3, show=False):
        assert_same(found, same_as)


class Listed(torch.utils.data.Dataset):
    """Rows of which nobody knows beforehand whether some are ignored."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


class Masking(TensorDataset):
    """Ignores targets on the way that its tensors do not."""

    def __init__(self, data):
        super().__init__(*data.tensors)

    def __getitem__(self, index):
        inputs, targets = super().__getitem__(index)
        return inputs, targets.where(inputs[..., 0] > 0, -100)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Listed, Masking])
def test_the_default_loss_ignores_rows_alike_in_every_mode(kind):
    """The default: cross_entropy ignores the target -100, and so do the metrics."""
    inputs, targets = data().tensors
    rows = kind(TensorDataset(inputs, targets.where(torch.arange(ROWS) % 3 > 0, -100)))

    def figures(mode, **settings):
        config = TrainConfig(mode=mode, batch_size=BATCH, epochs=2, optimizer="sgd", **settings)
        last = Trainer(model(), config, rows, rows, metrics=("accuracy", "recall@2")).fit().last
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
