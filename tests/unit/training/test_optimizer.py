"""The learning rate of every step."""

import math

import pytest
import torch

from multigpu.training.config import TrainConfig
from multigpu.training.optimizer import make_schedule, scaled_learning_rate


def rates(config: TrainConfig, total: int) -> list[float]:
    """The learning rates that the optimizer really has in steps 1 to `total`."""
    rate = scaled_learning_rate(config)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
    schedule = make_schedule(optimizer, config, total)
    had = []
    for _ in range(total):
        had.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return had


@pytest.mark.parametrize(("rule", "rate"), [("none", 0.1), ("linear", 0.4), ("sqrt", 0.2)])
def test_the_rate_is_scaled_to_the_batch(rule, rate):
    config = TrainConfig(learning_rate=0.1, lr_scaling=rule, batch_size=256, base_batch_size=64)
    assert scaled_learning_rate(config) == pytest.approx(rate)


def test_the_warm_up_rises_evenly_to_the_full_rate():
    config = TrainConfig(learning_rate=1.0, warmup_steps=4)
    assert rates(config, 7) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0])


def test_linear_falls_to_nothing_after_the_warm_up():
    config = TrainConfig(learning_rate=1.0, warmup_steps=1, schedule="linear")
    assert rates(config, 5) == pytest.approx([0.5, 1.0, 0.75, 0.5, 0.25])


def test_cosine_falls_along_half_a_wave():
    config = TrainConfig(learning_rate=1.0, schedule="cosine")
    wave = [(1 + math.cos(math.pi * step / 4)) / 2 for step in range(4)]
    assert rates(config, 4) == pytest.approx(wave)
