"""What each epoch of a training run came to: a table that can be shown, written and restored."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multigpu.training.atomic_file import replace_file

if TYPE_CHECKING:
    import pandas

SHOWN_ROWS = 12
DIGITS = 5  # of a number as it is shown; the frame and the file have all of them


class History:
    """One row per epoch, a dict of figures. `history.frame()` is the same as a pandas frame."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """Add the figures of one epoch. Rows may have different columns.

        The row of an epoch that was broken off gives way to that of the same epoch, gone on with.
        """
        if "epoch" in row and self.last.get("epoch") == row["epoch"]:
            self.rows.pop()
        self.rows.append(dict(row))

    @property
    def last(self) -> dict[str, Any]:
        """The figures of the latest epoch; none before the first."""
        return self.rows[-1] if self.rows else {}

    def __len__(self) -> int:
        return len(self.rows)

    def frame(self) -> pandas.DataFrame:
        """All rows as a pandas frame. A figure that an epoch does not have is NaN there."""
        import pandas

        return pandas.DataFrame(self.rows, columns=self._columns())

    def to_csv(self, path: str | Path) -> None:
        """Write all rows to `path`. Whoever reads it meanwhile sees the old file or the new one."""
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

        rows = [{name: visible(value) for name, value in row.items()} for row in self.rows]
        return pandas.DataFrame(rows, columns=self._columns())

    def _columns(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"rows": [dict(row) for row in self.rows]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
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


def visible(value: Any) -> Any:
    """A figure that is not a number as the word for it, since pandas shows it as a missing one."""
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def short(number: float) -> str:
    """`number` with a few digits: 0.012346, 123.46."""
    return f"{number:.{DIGITS}g}"
