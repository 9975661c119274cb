"""A part of a model that is a module itself: it takes what the stage before it returned."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_leaves, tree_map

from multigpu.training.strategy import modes_kept
from multigpu.training.tracing import (
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


class Holder(nn.Module):
    """Stands for a module of the model of which the stage has a part."""


def hold_module(stage: nn.Module, model: nn.Module, name: str) -> None:
    """Hold a module of the model."""
    *path, last = name.split(".")
    _home(stage, path).add_module(last, model.get_submodule(name))


def hold_tensor(stage: nn.Module, model: nn.Module, name: str) -> None:
    """Hold a parameter, a buffer or a plain tensor of the model, if a module does not yet do so."""
    *path, last = name.split(".")
    source = model.get_submodule(".".join(path))
    home = _home(stage, path)
    if home is source or hasattr(home, last):
        return
    if last in source._parameters:
        home.register_parameter(last, source._parameters[last])
    else:
        persistent = last in source._buffers and last not in source._non_persistent_buffers_set
        value = torch.as_tensor(getattr(source, last))
        home.register_buffer(last, value, persistent=persistent)


def _home(stage: nn.Module, path: Sequence[str]) -> nn.Module:
    """The module at a path, made where it is missing."""
    home = stage
    for name in path:
        if name not in home._modules:
            home.add_module(name, Holder())
        home = home.get_submodule(name)
    return home


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


def chain_of(model: nn.Module, program: Program, places: Sequence[int]) -> list[nn.Module]:
    """A stage for each pair of neighbouring `places`.

    The first one also holds the parameters and buffers that forward never uses: they belong to a
    checkpoint all the same.
    """
    stages = [Stage(model, program, begin, end) for begin, end in itertools.pairwise(places)]
    used = {name for stage in stages for name in stage.state_dict()}
    stages[0] = Stage(model, program, *places[:2], also=others(model, used))
    return list(stages)


def others(model: nn.Module, used: set[str]) -> list[str]:
    """The names of parameters and buffers that are not `used`, under another name either."""
    persistent = model.state_dict(keep_vars=True)
    same = {id(persistent[name]) for name in used if name in persistent}
    return [
        name
        for name, one in persistent.items()
        if name not in used and isinstance(one, Tensor) and id(one) not in same
    ]


def verify(model: nn.Module, program: Program, inputs: tuple[Any, ...], *, rows: int) -> None:
    """Compare the steps with the model, in evaluation, on the sample and on one row more.

    Raises ValueError where the results differ.
    """
    whole = Stage(model, program, 0, len(program.steps))
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with modes_kept(model), torch.random.fork_rng(), torch.no_grad():
        model.eval()
        whole.eval()
        more = tree_map(lambda one: _one_more(one, rows), inputs)
        what = {"the sample": inputs, f"{rows + 1} rows instead of {rows}": more}
        for name, given in what.items():
            with _kept(buffers):
                expected = _answer(model, given, name)
            with _kept(buffers):
                _compare(expected, _answer(whole, given, name), name)


def _answer(model: nn.Module, inputs: tuple[Any, ...], what: str) -> Any:
    """What it returns for a copy of the inputs, always with the same random numbers."""
    torch.manual_seed(0)
    try:
        return model(*copy.deepcopy(inputs))
    except Exception as error:
        raise ValueError(f"the model cannot be cut: it fails on {what}: {error}") from error


def _compare(expected: Any, found: Any, what: str) -> None:
    pairs = zip(tree_leaves(expected), tree_leaves(found), strict=True)
    for one, other in pairs:
        if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
            continue
        if one.shape != other.shape or not torch.allclose(one, other, rtol=1e-4, equal_nan=True):
            raise ValueError(
                f"the model cannot be cut: on {what} its steps compute something else than the "
                "model. Does forward depend on something that changes from call to call, or on "
                "the number of rows in an `if`? Then write the stages by hand."
            )


@contextlib.contextmanager
def _kept(buffers: list[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Whatever forward does to buffers in place is undone."""
    yield
    for buffer, before in buffers:
        buffer.copy_(before)


def _one_more(one: Any, rows: int) -> Any:
    """An input with its first row once more at the end."""
    if not isinstance(one, Tensor) or one.dim() == 0 or len(one) != rows:
        return one
    return torch.cat([one, one[:1]])
