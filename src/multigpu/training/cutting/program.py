"""What a model computes, as a list of steps: what recording.py writes and stage.py runs.

A step is one call: of a module of torch.nn, or of a function of torch. Its arguments are kept as
they were, with a note in the place of whatever is only known when the step runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch.fx.node import map_aggregate


@dataclass(frozen=True)
class Value:
    """The tensor of this number: an input of the model, or what an earlier step made."""

    number: int


@dataclass(frozen=True)
class Held:
    """A parameter, a buffer or another tensor of the model, by its full name."""

    name: str


@dataclass(frozen=True)
class Constant:
    """A tensor that the model takes from elsewhere, by its number in `Program.constants`."""

    number: int


@dataclass(frozen=True)
class Here:
    """The device that the stage runs on."""


@dataclass(frozen=True)
class Rows:
    """A number that follows from the number of rows: `times * rows + plus`, or `times / rows`."""

    times: float
    plus: float
    inverse: bool = False

    def at(self, rows: int) -> Any:
        """Its value for a batch of this many rows; a whole number where it was one."""
        return self.times / rows if self.inverse else self.times * rows + self.plus


def at_rows(size: Any, rows: int) -> float:
    """A size, be it fixed or not, for a batch of this many rows."""
    return size.at(rows) if isinstance(size, Rows) else size  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ByMode:
    """An argument that is one thing in training and another in evaluation."""

    training: Any
    evaluation: Any


@dataclass(frozen=True)
class Step:
    """One call. `made` are the numbers of the tensors in what it returns, in order."""

    module: str | None  # the module's full name; None where `function` is called
    function: Callable[..., Any] | None
    name: str  # for people: "Linear", "softmax"
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: tuple[int, ...]
    where: str  # the line of the model's code: "model.py:31"
    only: str | None = None  # "training" or "evaluation": it is left out in the other mode
    no_grad: bool = False  # it was called under torch.no_grad()

    @property
    def used(self) -> list[int]:
        """The numbers of the tensors that it needs."""
        return [note.number for note in self.notes if isinstance(note, Value)]

    @property
    def held(self) -> list[str]:
        """Names of the parameters and buffers that it names itself."""
        return [note.name for note in self.notes if isinstance(note, Held)]

    @functools.cached_property
    def notes(self) -> list[Any]:
        """All that stands in its arguments."""
        return notes_in((self.args, self.kwargs))

    def __str__(self) -> str:
        inside = f" ({self.module})" if self.module else ""
        return f"{self.name}{inside} at {self.where}"


def notes_in(tree: Any) -> list[Any]:
    """The leaves of a tree of arguments, slices included, and what a ByMode holds."""
    found: list[Any] = []
    map_aggregate(tree, lambda note: found.append(note))
    inside = [
        notes_in((note.training, note.evaluation)) if isinstance(note, ByMode) else [note]
        for note in found
    ]
    return [note for notes in inside for note in notes]


@dataclass(frozen=True)
class Shape:
    """What a value looks like; sizes may be `Rows`."""

    sizes: tuple[Any, ...]
    dtype: Any
    requires_grad: bool
    numbers: Any  # elements: int or Rows
    storage: int  # the same for values that share memory
    order: tuple[int, ...]  # its dimensions as they lie in memory, the outermost first
    gaps: bool  # has to be copied before it is handed on

    def bytes(self, rows: int) -> int:
        """Bytes for a batch of this many rows."""
        return int(at_rows(self.numbers, rows) * self.dtype.itemsize)

    def at(self, rows: int) -> tuple[int, ...]:
        """Its sizes for a batch of this many rows."""
        return tuple(int(at_rows(size, rows)) for size in self.sizes)


@dataclass(frozen=True)
class Program:
    """A model as steps, in the order in which it calls them."""

    inputs: tuple[int, ...]  # the tensors among the inputs
    steps: tuple[Step, ...]
    outputs: Any  # what the model returns, with a Value in the place of each tensor
    shapes: dict[int, Shape]  # of each value
    constants: tuple[Any, ...]
    saved: tuple[dict[int, Any], ...]  # per step: storages kept for backward → bytes (int or Rows)
    joined: frozenset[int] = field(default=frozenset())  # places where it must not be cut

    def crossing(self, place: int) -> list[int]:
        """The values made before step `place` that it or a later step needs, in order."""
        return self._crossings[place]

    @functools.cached_property
    def _crossings(self) -> list[list[int]]:
        """For each place."""
        alive = list(self.inputs)
        crossings = []
        for place in range(len(self.steps) + 1):
            alive = [number for number in alive if self.last_use.get(number, -1) >= place]
            crossings.append(alive)
            if place < len(self.steps):
                alive = [*alive, *self.steps[place].made]
        return crossings

    @functools.cached_property
    def last_use(self) -> dict[int, int]:
        """The last step that needs a value; what the model returns is needed after all steps."""
        last: dict[int, int] = {}
        for place, step in enumerate(self.steps):
            last.update(dict.fromkeys(step.used, place))
        returned = [note for note in notes_in(self.outputs) if isinstance(note, Value)]
        last.update({note.number: len(self.steps) for note in returned})
        return last
