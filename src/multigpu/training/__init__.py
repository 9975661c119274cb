"""One Trainer for one GPU and for many, and the models of the course.

from multigpu.training import TrainConfig, Trainer
history = Trainer(model, TrainConfig(batch_size=128), train_data, eval_data).fit()
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multigpu.training.config import TrainConfig
    from multigpu.training.history import History
    from multigpu.training.partition import cut, cut_points
    from multigpu.training.prepared import prepare
    from multigpu.training.trainer import Trainer

HOMES = {
    "History": "history",
    "TrainConfig": "config",
    "Trainer": "trainer",
    "cut": "partition",
    "cut_points": "partition",
    "prepare": "prepared",
}
__all__ = ["History", "TrainConfig", "Trainer", "cut", "cut_points", "prepare"]


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: `cut` needs torch.fx and fake tensors, which are slow."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
