"""Which epoch is the best so far, and when a run stops because there is no improvement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from multigpu.training.distributed import from_main_rank


class EarlyStopping:
    """Remembers the best value of a figure, and stops after `patience` epochs without a better one.

    A "loss" is better when it is smaller, every other figure when it is larger. A figure that is
    NaN is never better: it counts as an epoch without improvement. An equal figure is not better.
    `patience=None` never stops, but still finds the best epoch. 0 means the same as 1.
    """

    def __init__(self, patience: int | None, *, monitor: str) -> None:
        self.patience, self.monitor = patience, monitor
        self.smaller_is_better = monitor == "loss" or monitor.endswith("_loss")
        self.best = math.inf if self.smaller_is_better else -math.inf
        self.epochs_without_better = 0

    @property
    def should_stop(self) -> bool:
        """Whether `patience` epochs have gone by without a better figure."""
        waited = self.epochs_without_better
        return self.patience is not None and waited > 0 and waited >= self.patience

    def update(self, figures: Mapping[str, float], *, whole_epoch: bool = True) -> bool:
        """Take in an epoch's figures; True when it is the best so far.

        An epoch that was broken off is only compared; it does not count towards `patience`.

        Every rank calls this and uses rank 0's decision: if one rank continued while the others
        stopped, it would wait for them forever.
        """
        figure = float(figures[self.monitor])
        better = figure < self.best if self.smaller_is_better else figure > self.best
        waited = 0 if better else self.epochs_without_better + 1
        if not whole_epoch:
            return bool(from_main_rank(better))
        self.best, self.epochs_without_better = from_main_rank(
            (figure if better else self.best, waited)
        )
        return self.epochs_without_better == 0

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {"best": self.best, "epochs_without_better": self.epochs_without_better}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.best = float(state["best"])
        self.epochs_without_better = int(state["epochs_without_better"])
