"""What `multigpu train --data NAME` and `multigpu compare --data NAME` train: data with a model.

A task combines rows, a model for them, a loss, metrics, and settings that work well. You may use
any part of it separately::

    task = TASKS["flights"]
    train, test = task.load()
    Trainer(task.model(), task.config(epochs=1), train, test, metrics=task.metrics).fit()
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from multigpu.data.datasets import Split, digits, text
from multigpu.data.flight_rows import flights
from multigpu.training.config import TrainConfig
from multigpu.training.models import (
    LargeCNN,
    NextDestination,
    SmallCNN,
    SmallGPT,
    TinyMLP,
    next_byte_loss,
)

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Task:
    """Data, a model for it, and how to train it well."""

    title: str
    """what is learnt, for a person"""
    load: Callable[[], Split]
    """the rows to train on and to test with"""
    model: Callable[[], nn.Module]
    """a new model; its first weights come from torch's global generator"""
    loss_fn: Loss = F.cross_entropy
    """(outputs, targets) -> the mean over the rows"""
    metrics: tuple[str, ...] = ("accuracy",)
    """what the evaluation computes besides the loss"""
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """fields of TrainConfig that differ from its own defaults here"""

    def config(self, **changes: Any) -> TrainConfig:
        """The task's settings; `changes` are fields of TrainConfig to override."""
        return TrainConfig(**{**self.defaults, **changes})


def _settings(**fields: Any) -> Mapping[str, Any]:
    return MappingProxyType({"base_batch_size": fields["batch_size"], **fields})


DIGITS = _settings(batch_size=64, epochs=12, learning_rate=3e-3, monitor="accuracy")

TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "digits": Task(
            title="classify a handwritten digit",
            load=digits,
            model=SmallCNN,
            defaults=DIGITS,
        ),
        "flights": Task(
            title="predict an aircraft's next destination",
            load=flights,
            model=NextDestination,
            metrics=("recall@10", "ndcg@10"),
            defaults=_settings(
                batch_size=512,
                epochs=3,
                learning_rate=3e-3,
                schedule="cosine",
                warmup_steps=50,
                weight_decay=0.01,
                monitor="recall@10",
            ),
        ),
        "text": Task(
            title="predict the next byte of Python's documentation",
            load=partial(text, block=64),
            model=partial(SmallGPT, block=64),
            loss_fn=next_byte_loss,
            metrics=(),
            defaults=_settings(
                batch_size=64,
                epochs=5,
                learning_rate=2e-3,
                schedule="cosine",
                warmup_steps=40,
                weight_decay=0.01,
                clip_norm=1.0,
            ),
        ),
        "tiny": Task(
            title="classify a digit with 221 parameters: little to compute, nearly all is overhead",
            load=digits,
            model=TinyMLP,
            defaults=MappingProxyType({**DIGITS, "learning_rate": 1e-2}),
        ),
        "large": Task(
            title="classify a digit with far too large a network: much to compute, little to send",
            load=digits,
            model=LargeCNN,
            defaults=_settings(batch_size=128, epochs=2, learning_rate=1e-3, monitor="accuracy"),
        ),
    }
)
