"""The table of stages that a learner reads before training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from multigpu.pictures.tables import Table
from multigpu.pictures.units import human_seconds

if TYPE_CHECKING:
    from multigpu.training.cutting.stages import Stages

COLUMNS = (
    "stage",
    "modules",
    "parameters",
    "forward + backward",
    "weights MB",
    "gradients MB",
    "activations MB",
)


def table_of(stages: Stages) -> Table:
    """One line per stage; MB are millions of bytes, activations those of one micro-batch."""
    lines = []
    for number, cost in enumerate(stages.costs):
        lines.append(
            (
                str(number),
                named(cost.modules),
                f"{cost.parameters:,}",
                human_seconds(cost.seconds),
                megabytes(cost.weight_bytes),
                megabytes(cost.gradient_bytes),
                megabytes(cost.activation_bytes),
            )
        )
    setting = stages.setting
    share = stages.bubble(setting.micro_batches)
    title = (
        f"{len(stages)} stages for micro-batches of {setting.rows} rows; with "
        f"{setting.micro_batches} of them a stage waits {share:.0%} of a step, as predicted"
    )
    return Table(title, COLUMNS, tuple(lines), frozenset(COLUMNS) - {"modules"})


def named(modules: tuple[str, ...]) -> str:
    """The first and the last module."""
    if not modules:
        return "functions only"
    return modules[0] if len(modules) == 1 else f"{modules[0]} … {modules[-1]}"


def megabytes(count: int) -> str:
    """Millions of bytes, with two or three figures."""
    return f"{count / 1e6:,.2f}" if count < 1e7 else f"{count / 1e6:,.0f}"
