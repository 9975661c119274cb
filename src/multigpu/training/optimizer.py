"""The optimizer that a configuration names, and the learning rate of every step: scaled to the
batch size, warmed up, then brought down."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from multigpu.training.config import TrainConfig

MOMENTUM = 0.9  # of sgd


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """An optimizer over the parameters of `model` that are trained."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate, decay = scaled_learning_rate(config), config.weight_decay
    if config.optimizer == "sgd":
        return torch.optim.SGD(trained, lr=rate, momentum=MOMENTUM, weight_decay=decay)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(trained, lr=rate, weight_decay=decay)


def scaled_learning_rate(config: TrainConfig) -> float:
    """The highest learning rate of the run, after `lr_scaling`.

    linear: Goyal et al. 2017, arXiv 1706.02677. sqrt: Hoffer et al. 2017, arXiv 1705.08741; before
    them Krizhevsky 2014, arXiv 1404.5997, gave it as the theory but found linear to work best.
    """
    ratio = config.batch_size / config.base_batch_size
    factor = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[config.lr_scaling]
    return config.learning_rate * factor


def make_schedule(
    optimizer: torch.optim.Optimizer, config: TrainConfig, total_steps: int
) -> LambdaLR:
    """Step it once after every optimizer step; `total_steps` is when the rate has reached 0."""

    def factor(step: int) -> float:
        if step < config.warmup_steps:
            return (step + 1) / (config.warmup_steps + 1)
        if config.schedule == "constant":
            return 1.0
        done = (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps)
        if config.schedule == "linear":
            return max(0.0, 1 - done)
        return (1 + math.cos(math.pi * min(1.0, done))) / 2

    return LambdaLR(optimizer, factor)


def restore_schedule(schedule: LambdaLR, state: dict[str, Any]) -> None:
    """Put `schedule` where it was saved, its optimizer at the rate that *this* schedule has there.

    The two differ where the run has become longer since: the rate that was saved is the old one.
    """
    schedule.load_state_dict(state)
    for group, base, factor in zip(
        schedule.optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True
    ):
        group["lr"] = base * factor(schedule.last_epoch)


def learning_rate_of(schedule: LambdaLR, step: int) -> float:
    """The learning rate that optimizer step number `step` had; the first one is step 1."""
    factor = schedule.lr_lambdas[0](step - 1)
    return float(schedule.base_lrs[0] * factor)
