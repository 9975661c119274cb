"""A part of a model that is a module itself: it takes what the stage before it returned."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_leaves

from multigpu.training.cutting.holding import hold_module, hold_tensor
from multigpu.training.cutting.program import (
    ByMode,
    Constant,
    Held,
    Here,
    Program,
    Rows,
    Shape,
    Step,
    Value,
    notes_in,
)


class Stage(nn.Module):
    """Some of the steps of a model, one after the other.

    Call it with the tensors that the stage before it returned; it returns the tensors that the next
    one needs, those that it only hands on included. The last returns what the model returns. Its
    modules are the model's own, under the same names, so `state_dict()` has the model's names.
    """

    def __init__(
        self, model: nn.Module, program: Program, begin: int, end: int, *, also: Iterable[str] = ()
    ) -> None:
        """The steps from `begin` up to `end`; `also` names tensors to hold, besides those used."""
        super().__init__()
        self.steps = program.steps[begin:end]
        self.takes = tuple(program.crossing(begin)) if begin else program.inputs
        self.last = end == len(program.steps)
        self.returns: Any = (
            program.outputs if self.last else tuple(map(Value, program.crossing(end)))
        )
        self.from_model_inputs = begin == 0
        # Between stages a tensor's dimensions stand as they lie in memory: copied into another
        # order its numbers would meet dropout's in another order than in the model.
        taken = self.takes if begin else ()
        self._taken = [program.shapes[number].order for number in taken]
        handed = () if self.last else program.crossing(end)
        self._handed = [program.shapes[number].order for number in handed]
        self._drop = _last_uses(self.steps, self.returns)
        self._rows = rows_in(self.takes, program.shapes)
        for name in dict.fromkeys(s.module for s in self.steps if s.module is not None):
            hold_module(self, model, name)
        for name in dict.fromkeys([*(n for s in self.steps for n in s.held), *also]):
            hold_tensor(self, model, name)
        for step in self.steps:
            for note in step.notes:
                if isinstance(note, Constant):
                    name = f"_constant_{note.number}"
                    self.register_buffer(name, program.constants[note.number], persistent=False)
        self.training = model.training  # its modules are the model's, and are in a mode already

    def forward(self, *given: Any) -> Any:
        """Tensors in, a tensor or a tuple of tensors out; any number of rows."""
        tensors = [one for one in tree_leaves(given) if isinstance(one, Tensor)]
        if len(tensors) != len(self.takes):
            raise ValueError(f"this stage takes {len(self.takes)} tensors, got {len(tensors)}")
        entered = [_entered(tensor) for tensor in tensors]
        if self._taken:
            entered = [_put_back(*pair) for pair in zip(entered, self._taken, strict=True)]
        values: dict[int, Tensor] = dict(zip(self.takes, entered, strict=True))
        context = _Context(self, values, entered)
        for step, drop in zip(self.steps, self._drop, strict=True):
            if step.only == self.left_out:
                continue
            returned = self.run(step, context)
            if isinstance(returned, Tensor):
                values[step.made[0]] = returned
            else:
                made = [one for one in tree_leaves(returned) if isinstance(one, Tensor)]
                values.update(zip(step.made, made, strict=True))
            for number in drop:
                values.pop(number, None)
        answer: Any = map_aggregate(self.returns, context.find)
        if self.last:
            return answer
        # A neighbour receives into memory without gaps.
        pairs = zip(answer, self._handed, strict=True)
        handed = tuple(tensor.permute(order).contiguous() for tensor, order in pairs)
        return handed[0] if len(handed) == 1 else handed

    def run(self, step: Step, context: _Context) -> Any:
        """What one step returns."""
        args, kwargs = map_aggregate((step.args, step.kwargs), context.find)
        call = step.function if step.module is None else self.get_submodule(step.module)
        with torch.no_grad() if step.no_grad else contextlib.nullcontext():
            return call(*args, **kwargs)  # type: ignore[misc]

    @property
    def left_out(self) -> str:
        """The mode whose own steps do not run now."""
        return "evaluation" if self.training else "training"

    def extra_repr(self) -> str:
        return f"{len(self.steps)} steps, takes {len(self.takes)} tensors"


def _entered(tensor: Tensor) -> Tensor:
    """The same tensor; the gradient that goes back to the stage before has no gaps either."""
    if not tensor.requires_grad:
        return tensor
    entered = tensor.view_as(tensor)
    entered.register_hook(_without_gaps)  # type: ignore[no-untyped-call]
    return entered


def _put_back(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """A tensor whose dimensions came in the `order` in which they lie, as the model knows it."""
    return tensor.permute([order.index(dim) for dim in range(len(order))])


def _without_gaps(gradient: Tensor) -> Tensor:
    return gradient.contiguous()


class _Context:
    """Puts the real thing in the place of each note."""

    def __init__(self, stage: Stage, values: dict[int, Tensor], given: Sequence[Tensor]) -> None:
        self.stage, self.values, self.given = stage, values, given
        self.rows: int | None = None

    def find(self, note: Any) -> Any:
        if isinstance(note, Value):
            return self.values[note.number]
        if isinstance(note, Held):
            return functools.reduce(getattr, note.name.split("."), self.stage)
        if isinstance(note, ByMode):
            chosen = note.training if self.stage.training else note.evaluation
            return map_aggregate(chosen, self.find)
        if isinstance(note, Rows):
            return note.at(self.count())
        if isinstance(note, Here):
            return self.given[0].device
        if isinstance(note, Constant):
            return getattr(self.stage, f"_constant_{note.number}")
        return note

    def count(self) -> int:
        """The number of rows of the batch."""
        if self.rows is None:
            if self.stage._rows is None:
                raise AssertionError("a stage that needs the number of rows receives none")
            which, dim, times = self.stage._rows
            self.rows = self.given[which].shape[dim] // times
        return self.rows


def rows_in(takes: Sequence[int], shapes: dict[int, Shape]) -> tuple[int, int, int] | None:
    """What tells the number of rows: the index of a tensor, its dimension, what to divide by."""
    for which, number in enumerate(takes):
        for dim, size in enumerate(shapes[number].sizes):
            if isinstance(size, Rows) and isinstance(size.times, int) and not size.plus:
                return which, dim, size.times
    return None


def _last_uses(steps: Sequence[Step], returns: Any) -> list[list[int]]:
    """After each step, the values that nothing in the stage needs any more."""
    needed = {one.number for one in notes_in(returns) if isinstance(one, Value)}
    drop: list[list[int]] = []
    for step in reversed(steps):
        over = [n for n in dict.fromkeys((*step.used, *step.made)) if n not in needed]
        needed.update(over)
        drop.append(over)
    return drop[::-1]
