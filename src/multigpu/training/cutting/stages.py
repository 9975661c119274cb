"""Cut a model into stages: what `cut` and `cut_points` return."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from torch import nn

from multigpu.pictures.tables import Table
from multigpu.training.cutting.chain import chain_of
from multigpu.training.cutting.costs import SCHEDULES, Costs, Setting, StageCost
from multigpu.training.cutting.dividing import WEIGHTS, divide
from multigpu.training.cutting.program import Program
from multigpu.training.cutting.table import table_of


@dataclass(frozen=True)
class CutPoints:
    """Where a model could be cut, with the measured cost of each piece in between."""

    model: nn.Module
    program: Program
    costs: Costs
    rows: int  # of the micro-batch that was measured

    @property
    def num_pieces(self) -> int:
        return len(self.costs.places) - 1

    def cut(
        self,
        num_stages: int,
        *,
        balance: str = "time",
        memory: int | None = None,
        micro_batches: int | None = None,
        schedule: str = "1f1b",
        optimizer_state: float = 2.0,
    ) -> Stages:
        """Divide the pieces into stages; see `multigpu.training.cut`."""
        if balance not in WEIGHTS:
            raise ValueError(f"balance={balance!r}: choose from {', '.join(map(repr, WEIGHTS))}")
        if num_stages < 1:
            raise ValueError(f"num_stages must be at least 1, got {num_stages}")
        if schedule not in SCHEDULES:
            raise ValueError(
                f"schedule={schedule!r}: choose from {', '.join(map(repr, SCHEDULES))}"
            )
        setting = Setting(
            num_stages, self.rows, micro_batches or num_stages, schedule, optimizer_state
        )
        pieces = divide(self.costs, setting, balance=balance, memory=memory)
        return Stages(self, setting, tuple(pieces))


class Stages:
    """A model as a chain of stages. `modules[i]` takes what `modules[i - 1]` returned."""

    def __init__(self, points: CutPoints, setting: Setting, pieces: tuple[int, ...]) -> None:
        self.points, self.setting, self.pieces = points, setting, pieces
        spans = list(itertools.pairwise(pieces))
        places = points.costs.places
        self.places = tuple(places[piece] for piece in pieces)
        self.costs: tuple[StageCost, ...] = tuple(
            points.costs.stage(number, first, last, setting)
            for number, (first, last) in enumerate(spans)
        )
        self.modules = chain_of(points.model, points.program, self.places)

    def __len__(self) -> int:
        return len(self.modules)

    @property
    def tied(self) -> list[tuple[str, tuple[int, ...]]]:
        """Parameters that several stages use, by their first name, with the stages' numbers.

        Each of the stages holds one, and their gradients have to be added up.
        """
        names: dict[int, str] = {}
        users: dict[int, list[int]] = {}
        for name, parameter in self.points.model.named_parameters():
            names[id(parameter)] = name
        for number, stage in enumerate(self.modules):
            for parameter in stage.parameters():
                users.setdefault(id(parameter), []).append(number)
        return [(names[one], tuple(by)) for one, by in users.items() if len(by) > 1]

    def predicted_step(self, num_microbatches: int, schedule: str = "1f1b") -> float:
        """Seconds of a step: the first micro-batch through all stages, then the slowest decides."""
        if schedule == "gpipe":  # all forward passes, then all backward passes
            parts = [[cost.forward for cost in self.costs], [cost.backward for cost in self.costs]]
        else:
            parts = [[cost.seconds for cost in self.costs]]
        return sum(sum(part) + (num_microbatches - 1) * max(part) for part in parts)

    def bubble(self, num_microbatches: int, schedule: str = "1f1b") -> float:
        """The share of a step in which a stage waits, on average."""
        busy = num_microbatches * sum(cost.seconds for cost in self.costs)
        return 1 - busy / (len(self) * self.predicted_step(num_microbatches, schedule))

    def table(self) -> Table:
        """A line per stage, and the predicted bubble."""
        return table_of(self)

    def __str__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().html()
