"""The history of a run: a table with a row per epoch, and a progress bar."""

from __future__ import annotations

import contextlib
import csv
import math
import sys
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multigpu.devices.monitor import snapshot
from multigpu.training.checkpoint import replace_file

if TYPE_CHECKING:
    import pandas

SHOWN_ROWS = 12
DIGITS = 5  # of a number as it is shown; the frame and the file have all of them
NARROW = 79  # columns of a progress bar where there is no terminal to ask


class History:
    """One row per epoch, a dict of figures. `history.frame()` is the same as a pandas frame."""

    evaluate_every: int | None = None  # steps between rows within an epoch

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

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


class ProgressBar:
    """Counts steps on standard error, only on rank 0, with the latest epoch's figures beside it.

    `shown`: True or False, or None for a bar only where standard error is a terminal. Elsewhere,
    in a notebook for example, it is plain text and needs no widgets.
    """

    def __init__(
        self, total: int, *, initial: int = 0, shown: bool | None = None, is_main: bool = True
    ) -> None:
        """A bar of `total` steps, of which `initial` were done earlier."""
        self._bar: Any = None
        with contextlib.suppress(AttributeError, OSError, ValueError):  # no standard error, closed
            terminal = sys.stderr.isatty()
            if not is_main or not (terminal if shown is None else shown):
                return
            from tqdm import tqdm

            class Bar(tqdm):  # type: ignore[misc]
                monitor_interval = 0  # no thread beside the training

            self._bar = Bar(
                total=total,
                initial=initial,
                unit="step",
                dynamic_ncols=terminal,
                ncols=None if terminal else NARROW,
                mininterval=0.2 if terminal else 1.0,
                maxinterval=float("inf"),
            )

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        self._tell("close")

    def update(self, steps: int = 1) -> None:
        """`steps` more are done."""
        self._tell("update", steps)

    def figures(self, **numbers: float) -> None:
        """Show these numbers, for example `loss=0.31`, with the next update."""
        shown = {name: f"{number:.4g}" for name, number in numbers.items()}
        self._tell("set_postfix", shown, refresh=False)

    def _tell(self, what: str, *values: Any, **named: Any) -> None:
        """Training continues when the bar can no longer be shown."""
        if self._bar is None:
            return
        try:
            getattr(self._bar, what)(*values, **named)
        except (OSError, ValueError):  # the terminal was closed: ValueError from a closed file
            self._bar = None
