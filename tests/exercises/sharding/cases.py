"""The cases of training that both sharded optimizers are tried with."""

from typing import Any

from .models import biased, deep, fork, forked, scales, specimen, steps_of
from .training import Case


def training(world):
    """Every parameter a model can have; several passes; rates that change; and a measured run."""
    rows = steps_of(world, 1, 3, 3, passes=2) + steps_of(world, 3, 3, 3)
    momentum = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    adam = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6}
    return [
        Case(specimen, "SGD", momentum, rows, rates={2: 0.03}),
        Case(deep, "Adam", adam, steps_of(world, 5, 6, 6), rates={3: 0.002}, measured=True),
    ]


def every_optimizer(world):
    """Each of the five, with options that are not the usual ones."""
    rows = steps_of(world, 3, 8, 8)
    kinds: dict[str, dict[str, Any]] = {
        "SGD": {"lr": 0.1, "momentum": 0.8, "nesterov": True},
        "Adam": {"lr": 0.01, "betas": (0.7, 0.9), "amsgrad": True, "weight_decay": 0.1},
        "AdamW": {"lr": 0.01, "weight_decay": 0.1},
        "RMSprop": {"lr": 0.01, "alpha": 0.9, "momentum": 0.5, "centered": True},
        "Adagrad": {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.2},
    }
    return [Case(biased, kind, options, rows) for kind, options in kinds.items()]


def some_unused(world):
    """A parameter without gradient on one rank, on all ranks in the last step, or always."""
    kinds = {
        "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
        "AdamW": {"lr": 0.01, "weight_decay": 0.1},
    }
    return [Case(fork, kind, options, forked(world, 4)) for kind, options in kinds.items()]


def few_elements(world):
    """One parameter with two elements: some rank owns nothing."""
    kinds = {"SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {}}
    rows, rates = steps_of(world, 3, 2, 2), {1: 0.02}
    return [Case(scales, kind, options, rows, rates=rates) for kind, options in kinds.items()]
