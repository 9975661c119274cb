"""The optimizer that a configuration names."""

from __future__ import annotations

import torch
from torch import nn

from multigpu.training.config import TrainConfig
from multigpu.training.schedule import scaled_learning_rate

MOMENTUM = 0.9  # of sgd


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """An optimizer over the parameters of `model` that are trained."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError("no parameter of the model requires a gradient: there is nothing to train")
    rate, decay = scaled_learning_rate(config), config.weight_decay
    if config.optimizer == "sgd":
        return torch.optim.SGD(trained, lr=rate, momentum=MOMENTUM, weight_decay=decay)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(trained, lr=rate, weight_decay=decay)
