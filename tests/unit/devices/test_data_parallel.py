"""PyTorch's own nn.DataParallel on virtual GPUs."""

import copy

import pytest
import torch
from torch import nn

from multigpu import virtual_gpus


def small_cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10)
    ).double()


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        outputs = model(images)
        loss = nn.functional.cross_entropy(outputs, labels.to(outputs.device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [3, 17])
def test_training_equals_training_without_gpus(count, rows):
    model = small_cnn()
    images = torch.randn(rows, 1, 8, 8, dtype=torch.float64)
    labels = torch.randint(0, 10, (rows,))
    on_cpu = copy.deepcopy(model)
    expected = train(on_cpu, images, labels)
    with virtual_gpus(count):
        losses = train(nn.DataParallel(model.to("cuda:0")), images, labels)
        model.cpu()
    assert losses == pytest.approx(expected, rel=1e-12)
    for ours, theirs in zip(model.parameters(), on_cpu.parameters(), strict=True):
        assert type(ours) is nn.Parameter
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
