"""bfloat16: every forward pass computes in it, whatever the mode."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from multigpu import virtual_gpus
from multigpu.training import TrainConfig, Trainer


class Told(nn.Module):
    """A linear layer that notes in which type it answered."""

    kinds: list[torch.dtype]

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.kinds = nn.Linear(4, 3), []

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.layer(inputs)
        self.kinds.append(scores.dtype)
        return scores


def kinds(mode: str, precision: str, gpus: int | None = None) -> list[torch.dtype]:
    """The types of all answers, in training and in the evaluation."""
    model = Told()
    rows = TensorDataset(torch.randn(12, 4), torch.randint(3, (12,)))
    config = TrainConfig(mode=mode, gpus=gpus, precision=precision, batch_size=6, epochs=1)
    Trainer(model, config, rows, rows).fit()
    assert all(weight.dtype is torch.float32 for weight in model.parameters())
    return model.kinds


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("count", [1, 3])
def test_every_replica_of_dp_computes_in_the_precision_asked_for(
    precision: str, count: int
) -> None:
    with virtual_gpus(3):
        answered = kinds("dp", precision, count)
    assert len(answered) == 5 * count  # a trial of the evaluation, two steps, its two batches
    assert set(answered) == {getattr(torch, precision)}


def test_one_device_computes_in_bfloat16() -> None:
    assert set(kinds("single", "bfloat16")) == {torch.bfloat16}
