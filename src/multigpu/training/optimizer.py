"""The optimizer that a configuration names, and the learning rate of every step: scaled to the
batch size, warmed up, then brought down. Or those that functions of the user make."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from multigpu.training.config import TrainConfig

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
MakeSchedule = Callable[[torch.optim.Optimizer, int], LRScheduler]  # the int: all steps of the run

MOMENTUM = 0.9  # of sgd
REPLACED = {  # settings that mean nothing where a function makes the optimizer or the schedule
    "optimizer": ("optimizer", "learning_rate", "weight_decay", "lr_scaling"),
    "schedule": ("schedule", "warmup_steps"),
}


def make_optimizer(
    model: nn.Module, config: TrainConfig, factory: MakeOptimizer | None = None
) -> torch.optim.Optimizer:
    """An optimizer over the parameters of `model` that are trained.

    Raises ValueError if `factory` returns one of other parameters.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if factory is not None:
        made = factory(trained)
        known = {id(parameter) for parameter in trained}
        if any(id(each) not in known for group in made.param_groups for each in group["params"]):
            raise ValueError(
                "optimizer= returned an optimizer of other parameters than those it was given. "
                "Use its argument, as in `lambda parameters: SGD(parameters, lr=0.1)`: the "
                "Trainer may have divided the model's own parameters among the ranks."
            )
        return made
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


def refuse_replaced(config: TrainConfig, what: str) -> None:
    """Raise ValueError for settings that the function passed as `what` would replace."""
    for name in REPLACED[what]:
        value = getattr(config, name)
        if value != getattr(TrainConfig, name):  # its default
            raise ValueError(
                f"{name}={value!r} together with the function {what}=: it would have no effect. "
                f"Set it in the function, or leave {what}= out."
            )


def make_schedule(
    optimizer: torch.optim.Optimizer,
    config: TrainConfig,
    total_steps: int,
    factory: MakeSchedule | None = None,
) -> LRScheduler:
    """Step it once after every optimizer step; `total_steps` is when the rate has reached 0."""
    if factory is not None:
        return factory(optimizer, total_steps)

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


def restore_schedule(schedule: LRScheduler, state: dict[str, Any]) -> None:
    """Put `schedule` where it was saved, its optimizer at the rate that *this* schedule has there.

    The two differ where the run has become longer since: the rate that was saved is the old one.
    Only a LambdaLR can be asked for the rate of any step; others continue as they were saved.
    """
    schedule.load_state_dict(state)
    if type(schedule) is not LambdaLR:
        return
    for group, base, factor in zip(
        schedule.optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True
    ):
        group["lr"] = base * factor(schedule.last_epoch)
