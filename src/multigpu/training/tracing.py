"""What a model computes, as a list of steps: traced on tensors without numbers.

A copy of the model runs on PyTorch's fake tensors: they have a shape, a dtype and a device but no
memory. It runs four times: in training and in evaluation, for many rows and for few. What the four
have in common is the program.

Why not torch.export, as torch.distributed.pipelining does? It looks into every module, so dropout
and BatchNorm stay in the mode in which they were seen.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import difflib
import functools
import math
import operator
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from multigpu.training.strategy import modes_kept


class Refused(Exception):
    """What is wrong with a model, without "the model cannot be cut"."""


# As frames name their files. Links are not followed, or below a linked .venv torch were the model.
OURS = __file__
TORCH = str(Path(torch.__file__).parent)
NN = f"{TORCH}{os.sep}nn{os.sep}"


def here() -> str:
    """The line of the model's code that runs now: the innermost that is not PyTorch's."""
    frame: FrameType | None = sys._getframe(1)
    inside = None
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(OURS):
            inside = inside or f"{short(file)}:{frame.f_lineno}"
            if not file.startswith(TORCH):
                return f"{short(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return inside or "?"


def line_of(error: BaseException) -> tuple[str, str]:
    """Where in the model's code an error arose: `model.py:31`, and the text of that line.

    Where a module of torch.nn is to blame, its own line is named after the model's.
    """
    frames = traceback.extract_tb(error.__traceback__)
    # The first of our own frames stands before the model's; theirs and PyTorch's come after it.
    begin = next((i for i, frame in enumerate(frames) if frame.filename.startswith(OURS)), 0)
    after = [frame for frame in frames[begin:] if not frame.filename.startswith(OURS)]
    own = [frame for frame in after if not frame.filename.startswith(TORCH)]
    found = (own or after or list(frames))[-1]
    where, line = f"{short(found.filename)}:{found.lineno}", (found.line or "").strip()
    blamed = [frame for frame in after[after.index(found) + 1 :] if NN in frame.filename]
    if blamed and blamed[-1].name not in ("_call_impl", "_wrapped_call_impl"):
        file = blamed[-1].filename.partition(TORCH)[2]
        where += f" (in torch{file}:{blamed[-1].lineno}, {blamed[-1].name})"
    return where, line


def short(file: str) -> str:
    """A file as people call it: relative to where they are, if it is there."""
    try:
        near = os.path.relpath(file)
    except ValueError:  # another drive
        return file
    return file if near.startswith("..") else near


def refuse(error: Exception) -> ValueError:
    """The ValueError for a model whose forward could not be recorded."""
    where, line = line_of(error)
    kind, said = type(error).__name__, (str(error).strip().splitlines() or [""])[0].rstrip(".")
    if "DataDependent" in kind:
        return ValueError(
            f"the model cannot be cut: at {where}, `{line}` depends on the numbers in a tensor, so "
            "there is no one list of steps to cut. Decide it outside forward, or replace the "
            "branch by arithmetic (torch.where); or write the stages by hand."
        )
    if "DynamicOutputShape" in kind:
        return ValueError(
            f"the model cannot be cut: at {where}, `{line}` makes a tensor whose size depends on "
            "the numbers in another one, so the next stage could not know what it receives. Use "
            "a mask of fixed size (torch.where), or write the stages by hand."
        )
    return ValueError(
        f"the model cannot be cut: its forward fails at {where}, `{line}`, when it runs on tensors "
        f"without numbers: {kind}: {said}. "
        "If it fails with the sample itself, too, mend that; else write the stages by hand."
    )


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


class Notebook:
    """The steps of `twin`, a fake copy of `model`; `memo` is that of the copying."""

    def __init__(
        self,
        model: nn.Module,
        twin: nn.Module,
        memo: dict[int, Any],
        inputs: Sequence[Tensor],
    ) -> None:
        self.twin = twin
        self.names = names_of(model, twin, memo)  # id of a fake tensor → its name
        self.kept: list[Any] = []  # so that no id is given away again
        self.values: dict[int, int] = {}  # id of a fake tensor → its number
        self.shapes: dict[int, Shape] = {}
        self.steps: list[Step] = []
        self.constants: list[Tensor] = []
        self.saved: list[dict[int, Any]] = []
        self.touched: dict[int, tuple[int, int]] = {}  # storage → its first and last step
        self.changed: dict[int, int] = {}  # storage → the last step that changed it in place
        self.buffers = {name: id(one) for name, one in twin.named_buffers()}
        self.held = {storage_of(one) for one in (*twin.parameters(), *twin.buffers())}
        self.inputs = tuple(self.know(tensor) for tensor in inputs)
        self.device = inputs[0].device
        self.touched.update((storage_of(tensor), (0, 0)) for tensor in inputs)

    def write(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        given: list[Tensor],
        made: list[Tensor],
        changed: list[Tensor],
        saved: dict[int, int],
        name: str,
        module: str | None = None,
        function: Callable[..., Any] | None = None,
    ) -> None:
        """Add a step. `saved`: the bytes of each storage that it keeps for backward."""
        if torch.is_autocast_enabled(self.device.type):
            raise Refused(
                f"at {here()} it chooses its precision by torch.autocast inside forward. Leave "
                'that to the Trainer (precision="bfloat16"), or call .to(dtype).'
            )
        place = len(self.steps)
        noted = map_aggregate((args, kwargs), self.note)  # before what it changes is made anew
        self.kept += [made, given]
        for tensor in (*given, *made):
            first, _ = self.touched.get(storage_of(tensor), (place, place))
            self.touched[storage_of(tensor)] = first, place
        self.changed.update((storage_of(tensor), place) for tensor in changed)
        self.steps.append(
            Step(
                module,
                function,
                name,
                tuple(noted[0]),
                dict(noted[1]),
                tuple(self.know(tensor) for tensor in made),
                here(),
                no_grad=not torch.is_grad_enabled(),
            )
        )
        self.saved.append({s: size for s, size in saved.items() if s not in self.held})

    def know(self, tensor: Tensor) -> int:
        """Give a tensor the next number."""
        number = len(self.shapes)
        self.kept.append(tensor)
        self.values[id(tensor)] = number
        strides = tensor.stride()
        order = tuple(sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim)))
        self.shapes[number] = Shape(
            tuple(tensor.shape),
            tensor.dtype,
            tensor.requires_grad,
            tensor.numel(),
            storage_of(tensor),
            order,
            not tensor.permute(order).is_contiguous(),
        )
        return number

    def note(self, given: Any) -> Any:
        """What stands in a step for an argument."""
        if isinstance(given, torch.device):
            return Here() if given == self.device else given
        if not isinstance(given, Tensor):
            return given
        if id(given) in self.values:
            return Value(self.values[id(given)])
        if id(given) in self.names:
            return Held(self.names[id(given)])
        if isinstance(given, FakeTensor):
            raise Refused(
                f"at {here()} it uses a tensor {tuple(given.shape)} that no function of torch has "
                "made, as far as can be seen: perhaps one of a list that a module keeps. Make it a "
                "buffer, or write the stages by hand."
            )
        self.constants.append(given)
        return Constant(len(self.constants) - 1)

    def program(self, returned: Any) -> Program:
        """All that was written down, when the twin has `returned`."""
        self._refuse_rebound()
        joined: set[int] = set()
        for storage, last in self.changed.items():
            # A stage gets copies: from the first use to the last change all must be in one stage,
            # and for the model's own tensors to the last use, as there is only one of each.
            first, end = self.touched[storage]
            joined.update(range(first + 1, (end if storage in self.held else last) + 1))
        return Program(
            self.inputs,
            tuple(self.steps),
            tree_map(self.note, returned),
            self.shapes,
            tuple(self.constants),
            tuple(self.saved),
            frozenset(joined),
        )

    def _refuse_rebound(self) -> None:
        """Raise where forward has put another tensor in the place of a buffer."""
        for name, one in self.twin.named_buffers():
            if self.buffers.get(name) != id(one) and id(one) not in self.names:
                raise Refused(
                    f"forward assigns the buffer {name}, which no stage would see. Change it in "
                    f"place: self.{name.rpartition('.')[2]}.copy_(new)."
                )


def names_of(model: nn.Module, twin: nn.Module, memo: dict[int, Any]) -> dict[int, str]:
    """The names of all tensors of the twin, by id: parameters, buffers, plain attributes."""
    named = [*twin.named_parameters(), *twin.named_buffers()]
    names = {id(tensor): name for name, tensor in named}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and id(value) in memo:
                names.setdefault(id(memo[id(value)]), f"{path}.{name}".lstrip("."))
    return names


def storage_of(tensor: Tensor) -> int:
    """Tensors that share memory have the same."""
    return int(tensor.untyped_storage()._cdata)


@contextlib.contextmanager
def seen_functions(call: Callable[..., Any]) -> Iterator[None]:
    """Inside it, `call` is told of each torch.autograd.Function: they bypass every mode."""
    plain = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        run = plain.__get__(None, cls)
        return call(run, args, kwargs, function=run, name=cls.__name__)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = plain  # type: ignore[method-assign]


@contextlib.contextmanager
def without_fast_paths() -> Iterator[None]:
    """PyTorch's transformer layers shall take the way that can be differentiated."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class Recorder(TorchFunctionMode):
    """Sees the calls of the model that `notebook` is about."""

    def __init__(self, notebook: Notebook) -> None:
        super().__init__()
        self.notebook = notebook
        self.saving_now: dict[int, int] = {}  # storage → bytes that the step keeps for backward
        self.inside = False
        for path, module in notebook.twin.named_modules():
            if path and is_leaf(module):
                module._forward_hooks.clear()  # the real ones run with the real module
                module._forward_pre_hooks.clear()
                module.forward = functools.partial(
                    self.call_module, path, type(module).__name__, module.forward
                )

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.inside:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        if name != "__get__":
            return self.call(func, args, kwargs, function=func, name=name)
        name = func.__self__.__name__  # x.T, x.shape
        return self.call(func, args, kwargs, function=operator.attrgetter(name), name=name)

    def call_module(
        self, path: str, kind: str, forward: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """What the twin's modules of torch.nn do in the place of their forward."""
        return self.call(forward, args, kwargs, module=path, name=kind)

    def call(
        self,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        **what: Any,
    ) -> Any:
        """Run one step and write it down, if tensors come of it or are changed by it."""
        if self.inside:
            return run(*args, **kwargs)
        self.inside, self.saving_now = True, {}  # what it calls itself is no step
        try:
            given = [one for one in notes_in((args, kwargs)) if isinstance(one, Tensor)]
            versions = [tensor._version for tensor in given]
            returned = run(*args, **kwargs)
            made = [one for one in tree_leaves(returned) if isinstance(one, Tensor)]
            changed = [t for t, v in zip(given, versions, strict=True) if t._version != v]
            if made or changed:  # else it is a size or a dtype, known before anything runs
                seen = {"given": given, "made": made, "changed": changed, **what}
                self.notebook.write(args, kwargs, saved=self.saving_now, **seen)
            return returned
        finally:
            self.inside = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """See what no mode is told of: what is kept for backward, and own autograd functions."""

        def keep(tensor: Tensor) -> Tensor:
            self.notebook.kept.append(tensor)
            self.saving_now[storage_of(tensor)] = tensor.untyped_storage().nbytes()
            return tensor

        saving = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with saving, seen_functions(self.call), without_fast_paths():
            yield


def is_leaf(module: nn.Module) -> bool:
    """Whether a stage keeps the module whole: those of torch.nn that contain no others."""
    if type(module) is nn.MultiheadAttention:
        return True
    return type(module).__module__.startswith("torch.nn.modules.") and not any(module.children())


MANY, FEW = 97, 3  # numbers that other dimensions hardly have; BatchNorm wants more than one


def generalise(many: Program, few: Program) -> Program:
    """The program for any number of rows.  Raises Refused where there is no such program."""
    for one, other in zip(many.steps, few.steps, strict=False):
        if (one.module, one.name, one.where) != (other.module, other.name, other.where):
            raise Refused(_other_calls(one, other))
    if len(many.steps) != len(few.steps):
        raise Refused(_other_calls(max(many.steps, few.steps, key=len)[-1], None))
    steps = tuple(_step(one, other) for one, other in zip(many.steps, few.steps, strict=True))
    shapes = {number: _shape(many.shapes[number], few.shapes[number]) for number in many.shapes}
    saved = tuple(_bytes(one, other) for one, other in zip(many.saved, few.saved, strict=True))
    return dataclasses.replace(
        many,
        steps=steps,
        shapes=shapes,
        saved=saved,
        outputs=_general(many.outputs, few.outputs, "what forward returns"),
        joined=many.joined | few.joined,
    )


def number_of_rows(many: float, few: float) -> Rows | None:
    """How a number follows from the rows, given its value for many and for few."""
    if isinstance(many, int) and isinstance(few, int):
        times, rest = divmod(many - few, MANY - FEW)
        return None if rest else Rows(times, many - times * MANY)
    if many and math.isclose(many * MANY, few * FEW, rel_tol=1e-9):
        return Rows(many * MANY, 0, inverse=True)
    slope = (many - few) / (MANY - FEW)
    whole = math.isclose(slope * MANY, many, rel_tol=1e-9)
    return Rows(slope, 0) if whole else None


def _step(one: Step, other: Step) -> Step:
    args = _general(one.args, other.args, str(one))
    return dataclasses.replace(one, args=args, kwargs=_general(one.kwargs, other.kwargs, str(one)))


def _general(many: Any, few: Any, where: str) -> Any:
    """One tree of arguments out of two."""
    if type(many) is not type(few):
        raise Refused(_other_arguments(where, many, few))
    if isinstance(many, tuple | list) and len(many) == len(few):
        parts = [_general(a, b, where) for a, b in zip(many, few, strict=True)]
        named = hasattr(many, "_fields")
        return type(many)(*parts) if named else type(many)(parts)
    if isinstance(many, dict) and many.keys() == few.keys():
        return {name: _general(many[name], few[name], where) for name in many}
    if isinstance(many, slice):
        parts = [_general(getattr(many, k), getattr(few, k), where) for k in _SLICE]
        return slice(*parts)
    if many is few or many == few:
        return many
    if isinstance(many, int | float) and not isinstance(many, bool):
        found = number_of_rows(many, few)
        if found is not None:
            return found
    raise Refused(_other_arguments(where, many, few))


_SLICE = ("start", "stop", "step")


def _shape(many: Shape, few: Shape) -> Shape:
    sizes = tuple(_size(a, b) for a, b in zip(many.sizes, few.sizes, strict=True))
    return dataclasses.replace(many, sizes=sizes, numbers=_size(many.numbers, few.numbers))


def _size(many: int, few: int) -> Any:
    """A size for any number of rows."""
    if many == few:
        return many
    return number_of_rows(many, few) or Rows(many / MANY, 0)


def _bytes(many: dict[int, Any], few: dict[int, Any]) -> dict[int, Any]:
    """What a step keeps for backward. A kernel may keep other things for few rows."""
    if len(many) != len(few):
        return {storage: Rows(size / MANY, 0) for storage, size in many.items()}
    pairs = zip(many.items(), few.values(), strict=True)
    return {storage: _size(size, other) for (storage, size), other in pairs}


def _other_calls(one: Step, other: Step | None) -> str:
    instead = f" and {other}" if other is not None else ""
    return (
        f"what forward calls depends on the number of rows: {one}{instead}, for {MANY} rows and "
        f"for {FEW}. A last batch may be smaller, so there must be one list of steps for all: use "
        "operations on the whole batch in the place of a loop or an `if`."
    )


def _other_arguments(where: str, many: Any, few: Any) -> str:
    return (
        f"{where} depends on the number of rows in a way that cannot be followed, or changes from "
        f"call to call: {many!r} for {MANY} rows, {few!r} for {FEW}. "
        "Compute it with tensors, or outside forward."
    )


def merge(training: Program, evaluation: Program) -> Program:
    """The steps of both modes in one list; those of one mode alone say so."""
    same = difflib.SequenceMatcher(
        a=[_key(step) for step in training.steps],
        b=[_key(step) for step in evaluation.steps],
        autojunk=False,
    )
    merger = _Merger(training, evaluation)
    for kind, a, a_end, b, b_end in same.get_opcodes():
        if kind == "equal":
            for offset in range(a_end - a):
                merger.both(a + offset, b + offset)
            continue
        for place in range(a, a_end):
            merger.training_only(place)
        for place in range(b, b_end):
            merger.evaluation_only(place)
    return merger.program()


def _key(step: Step) -> tuple[Any, ...]:
    return step.module, step.name, step.where, len(step.made)


class _Merger:
    """Numbers the values of evaluation as training numbers them, where both have them."""

    def __init__(self, training: Program, evaluation: Program) -> None:
        self.one, self.two = training, evaluation
        self.shapes = dict(training.shapes)
        self.numbers = dict(zip(evaluation.inputs, training.inputs, strict=True))
        self.steps: list[Step] = []
        self.saved: list[dict[int, Any]] = []
        self.apart: set[int] = set()  # values that one mode alone has
        self.joined: set[int] = set()

    def both(self, a: int, b: int) -> None:
        one, two = self.one.steps[a], self._renumbered(self.two.steps[b])
        self.numbers.update(zip(self.two.steps[b].made, one.made, strict=True))
        self._add(
            dataclasses.replace(
                one, args=_joined(one.args, two.args), kwargs=_joined(one.kwargs, two.kwargs)
            ),
            self.one.saved[a],
            joined=a in self.one.joined or b in self.two.joined,
        )

    def training_only(self, a: int) -> None:
        step = dataclasses.replace(self.one.steps[a], only="training")
        self.apart.update(step.made)
        self._add(step, self.one.saved[a], joined=a in self.one.joined)

    def evaluation_only(self, b: int) -> None:
        old = self.two.steps[b]
        for number in old.made:
            self.numbers[number] = len(self.shapes)
            self.shapes[len(self.shapes)] = self.two.shapes[number]
        made = tuple(self.numbers[number] for number in old.made)
        self.apart.update(made)
        step = dataclasses.replace(self._renumbered(old), made=made, only="evaluation")
        self._add(step, {}, joined=b in self.two.joined)

    def program(self) -> Program:
        returned = _joined(self.one.outputs, map_aggregate(self.two.outputs, self._renumber))
        program = dataclasses.replace(
            self.one,
            steps=tuple(self.steps),
            outputs=returned,
            shapes=self.shapes,
            constants=self.one.constants + self.two.constants,
            saved=tuple(self.saved),
        )
        # What one mode alone has cannot be handed on: a neighbour expects the same in both.
        split = {
            place
            for place in range(len(self.steps) + 1)
            if self.apart.intersection(program.crossing(place))
        }
        return dataclasses.replace(program, joined=frozenset(self.joined | split))

    def _add(self, step: Step, saved: dict[int, Any], *, joined: bool) -> None:
        if joined:
            self.joined.add(len(self.steps))
        self.steps.append(step)
        self.saved.append(saved)

    def _renumbered(self, step: Step) -> Step:
        args, kwargs = map_aggregate((step.args, step.kwargs), self._renumber)
        return dataclasses.replace(step, args=tuple(args), kwargs=dict(kwargs))

    def _renumber(self, note: Any) -> Any:
        if isinstance(note, Value):
            return Value(self.numbers[note.number])
        if isinstance(note, Constant):
            return Constant(note.number + len(self.one.constants))
        return note


def _joined(one: Any, two: Any) -> Any:
    """One tree of notes; where the two differ, a note that says so."""
    alike = type(one) is type(two)
    if alike and isinstance(one, tuple | list) and len(one) == len(two):
        return type(one)(_joined(a, b) for a, b in zip(one, two, strict=True))
    if alike and isinstance(one, dict) and one.keys() == two.keys():
        return {name: _joined(one[name], two[name]) for name in one}
    if alike and isinstance(one, Constant):
        return one  # the same tensor, seen twice; see recording.py
    same = alike and (one is two or one == two)
    return one if same else ByMode(one, two)


def record_both(model: nn.Module, inputs: tuple[Any, ...], *, rows: int) -> Program:
    """The steps of `model(*inputs)` in training and in evaluation; the model is left as it was.

    `rows` is how many rows the inputs have. Raises ValueError where forward decides by the numbers
    in a tensor or by the number of rows, and where it uses what cannot be seen.
    """
    recorded = []
    try:
        with modes_kept(model):
            for train in (True, False):
                model.train(train)
                two = [record(model, inputs, rows=rows, instead=count) for count in (MANY, FEW)]
                recorded.append(generalise(*two))
        return merge(*recorded)
    except Refused as error:
        raise ValueError(f"the model cannot be cut: {error}") from None


def record(model: nn.Module, inputs: tuple[Any, ...], *, rows: int, instead: int) -> Program:
    """The steps in the mode that the model is in, with `instead` rows in the place of `rows`."""
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    memo: dict[int, Any] = {}
    with FakeCopyMode(fake_mode):
        twin = copy.deepcopy(model, memo)

    def faked(one: Any) -> Any:
        """A fake of an input: its first dimension is the rows, if it is as long."""
        if not isinstance(one, Tensor):
            return one
        if one.dim() == 0 or len(one) != rows:
            return fake_mode.from_tensor(one)
        with fake_mode:
            return torch.empty((instead, *one.shape[1:]), dtype=one.dtype, device=one.device)

    fakes = tree_map(faked, inputs)
    tensors = [one for one in tree_leaves(fakes) if isinstance(one, Tensor)]
    notebook = Notebook(model, twin, memo, tensors)
    recorder = Recorder(notebook)
    with fake_mode, torch.enable_grad(), recorder.watching():
        try:
            with recorder:
                returned = twin(*fakes)
            return notebook.program(returned)
        except Refused:
            raise
        except Exception as error:
            raise refuse(error) from error
