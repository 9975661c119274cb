"""The history of a run: a table with a row per epoch, its best epoch, and a progress bar."""

from __future__ import annotations

import contextlib
import csv
import math
import sys
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from multigpu.data.replacing import replace_file
from multigpu.devices.monitor import snapshot
from multigpu.training.distributed import from_main_rank

if TYPE_CHECKING:
    import pandas

SHOWN_ROWS = 12
DIGITS = 5  # of a number as it is shown; the frame and the file have all of them
# Of a figure whose name ends in one of these.
SMALLER_IS_BETTER = ("loss", "error", "mae", "mse", "rmse", "perplexity")
NARROW = 79  # columns of a progress bar where there is no terminal to ask


class History:
    """One row per epoch, a dict of figures. `history.frame()` is the same as a pandas frame."""

    def __init__(self, evaluate_every: int | None = None) -> None:
        """`evaluate_every`: steps between two rows within an epoch."""
        self.rows: list[dict[str, Any]] = []
        self.evaluate_every = evaluate_every

    def add(self, row: Mapping[str, Any]) -> None:
        """Add the figures of one epoch. Rows may have different columns.

        The row of an interrupted epoch is replaced by the row of the same epoch after a resume;
        those of `evaluate_every` remain.
        """
        stays = self.evaluate_every and self.last.get("step", 1) % self.evaluate_every == 0
        if "epoch" in row and self.last.get("epoch") == row["epoch"] and not stays:
            self.rows.pop()
        self.rows.append(dict(row))

    @property
    def last(self) -> dict[str, Any]:
        """The figures of the latest epoch; empty before the first."""
        return self.rows[-1] if self.rows else {}

    def __len__(self) -> int:
        return len(self.rows)

    def frame(self) -> pandas.DataFrame:
        """All rows as a pandas frame. A figure that an epoch does not have is NaN there."""
        import pandas

        return pandas.DataFrame(self.rows, columns=self._columns())

    def to_csv(self, path: str | Path) -> None:
        """Write all rows to `path`. Readers see the old file or the new one, never a part."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = StringIO()
        lines = csv.DictWriter(text, self._columns(), lineterminator="\n")
        lines.writeheader()  # not by pandas: at each checkpoint a rank would import it
        lines.writerows(self.rows)
        replace_file(path, text.getvalue().encode())

    def _shown(self) -> pandas.DataFrame:
        """The frame as it is printed: NaN is written out, what is missing leaves its cell empty."""
        import pandas

        rows = [  # pandas shows a value that is not a number as a missing one
            {
                name: "nan" if isinstance(value, float) and math.isnan(value) else value
                for name, value in row.items()
            }
            for row in self.rows
        ]
        return pandas.DataFrame(rows, columns=self._columns())

    def _columns(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {"rows": [dict(row) for row in self.rows]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.rows = [dict(row) for row in state["rows"]]

    def __repr__(self) -> str:
        if not self.rows:
            return "History: no epoch yet"
        table: str = self._shown().to_string(
            index=False, max_rows=SHOWN_ROWS, float_format=short, na_rep="", line_width=100
        )
        return table

    def _repr_html_(self) -> str:
        if not self.rows:
            return "<p>History: no epoch yet</p>"
        table: str = self._shown().to_html(
            index=False, max_rows=SHOWN_ROWS, float_format=short, na_rep="", border=0
        )
        return table


def short(number: float) -> str:
    """`number` with a few digits: 0.012346, 123.46."""
    return f"{number:.{DIGITS}g}"


def gpu_figures() -> dict[str, float]:
    """nvitop's figures of the GPUs that torch sees now; for virtual GPUs, their memory.

    Per GPU i: `gpu{i}_gib`, the memory in use by all processes in GiB, and `gpu{i}_busy`, the
    percentage of the last second or less in which it computed. Figures that a GPU does not report
    are left out; {} without a GPU. With several machines: the GPUs of this one.
    """
    figures: dict[str, float] = {}
    for status in snapshot():
        if status.memory_used is not None:
            figures[f"gpu{status.index}_gib"] = status.memory_used / 2**30
        if status.utilization is not None:
            figures[f"gpu{status.index}_busy"] = status.utilization
    return figures


class EarlyStopping:
    """Remembers the best value of a figure, and stops after `patience` epochs without a better one.

    A larger figure is better, unless its name ends in one of `SMALLER_IS_BETTER`, as "mae" and
    "MeanAbsoluteError" do. A figure that is NaN is never better: it counts as an epoch without
    improvement. An equal figure is not better.
    `patience=None` never stops, but still finds the best epoch. 0 means the same as 1.
    """

    def __init__(self, patience: int | None, *, monitor: str) -> None:
        self.patience, self.monitor = patience, monitor
        self.smaller_is_better = monitor.lower().endswith(SMALLER_IS_BETTER)
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


class ProgressBar(tqdm):  # type: ignore[misc]
    """Counts steps on standard error, only on rank 0, with the latest epoch's figures beside it.

    `shown`: True or False, or None for a bar only where standard error is a terminal. Elsewhere,
    in a notebook for example, it is plain text and needs no widgets. Training continues when the
    terminal is closed.
    """

    monitor_interval = 0  # no thread beside the training

    def __init__(
        self, total: int, *, initial: int = 0, shown: bool | None = None, is_main: bool = True
    ) -> None:
        """A bar of `total` steps, of which `initial` were done earlier."""
        stream = sys.stderr  # None, or closed, in a program without a terminal
        there = stream is not None and not stream.closed
        terminal = there and stream.isatty()
        super().__init__(
            total=total,
            initial=initial,
            unit="step",
            disable=not (there and is_main and (terminal if shown is None else shown)),
            dynamic_ncols=terminal,
            ncols=None if terminal else NARROW,
            mininterval=0.2 if terminal else 1.0,
            maxinterval=math.inf,
        )

    def display(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().display(*args, **kwargs)
        except (OSError, ValueError):  # the terminal was closed: ValueError from a closed file
            self.disable = True

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().close()

    def figures(self, **numbers: float) -> None:
        """Show these numbers, for example `loss=0.31`, with the next update."""
        shown = {name: f"{number:.4g}" for name, number in numbers.items()}
        self.set_postfix(shown, refresh=False)
