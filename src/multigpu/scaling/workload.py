"""What is trained in every run of a comparison: one model, one data set, one configuration."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from multigpu.training.config import TrainConfig

if TYPE_CHECKING:
    from torch.utils.data import Dataset

EVALUATED = 4096  # rows of the test set: every mode is evaluated in every round


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model and its data, as the Trainer takes them.

    `model` is the model itself or a function that makes it; it is called once, and every run
    trains a copy, so all begin with the same weights. `config` gives batch size, optimizer,
    learning rate, precision and seed; a comparison makes a few steps with a constant learning rate,
    so its mode, epochs, schedule, folder and workers are not used.
    """

    name: str
    model: nn.Module | Callable[[], nn.Module]
    train: Any
    test: Any = None
    config: TrainConfig = field(default_factory=TrainConfig)
    loss_fn: Callable[[Any, Any], torch.Tensor] = F.cross_entropy
    metrics: Sequence[str] = ("accuracy",)

    def ready(self) -> Workload:
        """The same with its model made and its test set cut to the first `EVALUATED` rows."""
        torch.manual_seed(self.config.seed)
        model = self.model if isinstance(self.model, nn.Module) else self.model()
        return replace(self, model=model, test=first_rows(self.test, EVALUATED))


def workload_of(name: str, *, batch_size: int | None = None) -> Workload:
    """One of the course's tasks (training/tasks.py), with its own batch size unless one is given.

    Raises ValueError for a name that is none.
    """
    from multigpu.training.tasks import TASKS

    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name!r} is no task: choose one of {', '.join(TASKS)}.{hint}")
    task = TASKS[name]
    train, test = task.load()
    changes = {} if batch_size is None else {"batch_size": batch_size}
    return Workload(
        name=name,
        model=task.model,
        train=train,
        test=test,
        config=task.config(**changes),
        loss_fn=task.loss_fn,
        metrics=task.metrics,
    )


def first_rows(data: Any, most: int) -> Dataset[Any] | None:
    """The first rows of a map-style data set; all of any other data."""
    from torch.utils.data import Subset, TensorDataset

    if isinstance(data, TensorDataset):
        return TensorDataset(*(tensor[:most] for tensor in data.tensors))
    if not hasattr(data, "__getitem__") or len(data) <= most:
        return data  # type: ignore[no-any-return]
    return Subset(data, range(most))
