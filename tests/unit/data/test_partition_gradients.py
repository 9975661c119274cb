"""Unequal partitions, unequal batches: the averaged gradient is the mean over all rows."""

import pytest
import torch
from torch.nn import functional as F

from multigpu import run_ranks
from multigpu.data import PartitionedFile
from multigpu.training import TrainConfig, Trainer

pytestmark = pytest.mark.slow

BATCH, EPOCHS = 8, 2


def network():
    torch.manual_seed(0)
    return torch.nn.Linear(2, 1).double()


def loss_of(model, inputs, targets):
    """The mean over rows of a squared error."""
    scaled = inputs.double() / 30
    return F.mse_loss(model(scaled)[:, 0], targets.double() / 90)


def mean_error(outputs, targets):
    return F.mse_loss(outputs[:, 0], targets / 90)


def trained(data):
    """On each rank: the weights after two epochs with the Trainer."""
    config = TrainConfig(
        mode="ddp", epochs=EPOCHS, batch_size=BATCH, optimizer="sgd", learning_rate=1e-3, seed=5
    )
    model = network().float()
    Trainer(model, config, data, data, loss_fn=mean_error, metrics=()).fit()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_the_trainer_takes_the_same_steps_as_one_process_with_all_rows(tmp_path, numbers):
    data = PartitionedFile(
        numbers(tmp_path / "numbers.parquet", [9, 4, 8]), inputs=["number", "half"], target="target"
    )
    model = network().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    with pytest.warns(UserWarning, match="multigpu partition"):
        feeds = [data.feed(batch_size=BATCH, rank=rank, world_size=2, seed=5) for rank in (0, 1)]
    for epoch in range(EPOCHS):
        for step in zip(*(feed.batches(epoch) for feed in feeds), strict=True):
            inputs = torch.cat([batch.inputs[: batch.rows] for batch in step])
            targets = torch.cat([batch.targets[: batch.rows] for batch in step])
            optimizer.zero_grad()
            mean_error(model(inputs), targets).backward()
            optimizer.step()
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    for found in run_ranks(trained, 2, data, backend="gloo", show=False):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
