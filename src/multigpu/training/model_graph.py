"""A model as torch.fx graphs, for any number of rows, in training and in evaluation mode.

    program = trace_both(model, (images,), rows=len(images))
    print(program.training.graph)

fx.Tracer makes the graph, keeps modules of torch.nn whole and names them. But `forward` gets fake
tensors instead of the usual proxies: they have a shape, a dtype and a device but no memory. So `if
length > self.block` and `len(rows)` work, and a mode records each function that is called.

The model is traced four times: in training and in evaluation, for many rows and for few. A number
that changes with the rows is a function of them: 97 and 3 are `rows`, 388 and 12 are `4*rows`.

Why not torch.export, as torch.distributed.pipelining does? It decomposes every module, so dropout
and BatchNorm stay in the mode in which they were traced.
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
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from torch.fx.node import map_aggregate
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from multigpu.training.strategy import modes_kept

MANY, FEW = 97, 3  # numbers that other dimensions hardly have; BatchNorm wants more than one


@dataclass(frozen=True)
class Rows:
    """A number that follows from the number of rows: `times * rows + plus`, or `times / rows`."""

    times: float
    plus: float
    inverse: bool = False

    def at(self, rows: int) -> Any:
        """Its value for a batch of this many rows; a whole number where it was one."""
        return self.times / rows if self.inverse else self.times * rows + self.plus

    @classmethod
    def of(cls, many: float, few: float) -> Rows | None:
        """How a number follows from the rows, given its value for many and for few."""
        if isinstance(many, int) and isinstance(few, int):
            times, rest = divmod(many - few, MANY - FEW)
            return None if rest else cls(times, many - times * MANY)
        if many and math.isclose(many * MANY, few * FEW, rel_tol=1e-9):
            return cls(many * MANY, 0, inverse=True)
        slope = (many - few) / (MANY - FEW)
        return cls(slope, 0) if math.isclose(slope * MANY, many, rel_tol=1e-9) else None


def size_of(many: int, few: int) -> Any:
    """A size for any number of rows: a number where it is always the same."""
    return many if many == few else Rows.of(many, few) or Rows(many / MANY, 0)


def at_rows(size: Any, rows: int) -> int:
    """A size, be it fixed or not, for a batch of this many rows."""
    return int(size.at(rows)) if isinstance(size, Rows) else size


@dataclass(frozen=True)
class StageDevice:
    """Represents in a graph the device that it runs on."""


@dataclass(frozen=True)
class Value:
    """What a tensor in a graph looks like: `node.meta["value"]`. Sizes may be `Rows`."""

    sizes: tuple[Any, ...]
    bytes: Any
    requires_grad: bool
    storage: int  # the same for tensors that share memory
    order: tuple[int, ...]  # its dimensions in memory order, the outermost first
    gaps: bool  # has to be copied before it is handed on

    @classmethod
    def of(cls, tensor: Tensor) -> Value:
        strides = tensor.stride()
        order = tuple(sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim)))
        return cls(
            tuple(tensor.shape),
            tensor.numel() * tensor.element_size(),
            tensor.requires_grad,
            storage_of(tensor),
            order,
            not tensor.permute(order).is_contiguous(),
        )


@dataclass(frozen=True)
class ModelStep:
    """One call in a graph: of a module of torch.nn, or of a function of torch."""

    node: fx.Node
    made: tuple[fx.Node, ...]  # each tensor that it returns
    name: str  # for people: "Linear", "softmax"
    where: str  # the line of the model's code: "model.py:31"
    saved: dict[int, Any]  # storages kept for backward → bytes (int or Rows)

    @property
    def module(self) -> str | None:
        """The full name of the module that it calls."""
        return str(self.node.target) if self.node.op == "call_module" else None

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """The call, and the nodes that take the tensors out of its result."""
        return tuple(dict.fromkeys((self.node, *self.made)))

    @property
    def held(self) -> list[str]:
        """Names of the parameters and buffers that it names itself."""
        return [str(one.target) for one in self.node.all_input_nodes if one.op == "get_attr"]

    def __str__(self) -> str:
        inside = f" ({self.module})" if self.module else ""
        return f"{self.name}{inside} at {self.where}"


@dataclass(frozen=True)
class ModelGraph:
    """A model as steps, in the order in which it calls them, in one of its modes."""

    graph: fx.Graph
    inputs: tuple[fx.Node, ...]  # the tensors among the inputs
    steps: tuple[ModelStep, ...]
    joined: frozenset[int]  # places where it must not be cut

    def crossing(self, place: int) -> list[fx.Node]:
        """The tensors made before step `place` that it or a later step needs, in order."""
        return self._crossings[place]

    @functools.cached_property
    def _crossings(self) -> list[list[fx.Node]]:
        position = {node: at for at, step in enumerate(self.steps) for node in step.nodes}
        last = {
            node: max((position.get(user, len(self.steps)) for user in node.users), default=-1)
            for node in self.graph.nodes
        }
        alive = list(self.inputs)
        crossings = []
        for place in range(len(self.steps) + 1):
            alive = [node for node in alive if last[node] >= place]
            crossings.append(alive)
            if place < len(self.steps):
                alive = [*alive, *self.steps[place].made]
        return crossings


@dataclass(frozen=True)
class Program:
    """A model in both of its modes, and where it can be cut."""

    training: ModelGraph
    evaluation: ModelGraph
    places: dict[int, int]  # a step of training at which a stage may begin → that of evaluation
    constants: dict[str, Tensor] = field(default_factory=dict)  # that the model does not hold


class Uncuttable(ValueError):
    """A model that cannot be cut; the message says why, where, and what to do."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the model cannot be cut: {why}")


def trace_both(model: nn.Module, inputs: tuple[Any, ...], *, rows: int) -> Program:
    """The steps of `model(*inputs)` in training and in evaluation; the model is not changed.

    `rows` is the number of rows of the inputs. Raises ValueError if forward branches on the numbers
    in a tensor, on the number of rows or at random, or uses tensors that cannot be traced.
    """
    traces: list[ModelGraph] = []
    constants: dict[str, Tensor] = {}
    drawn = random_state()
    with modes_kept(model):
        for train in (True, False):
            model.train(train)
            many, few = (
                ShapeTracer(model, inputs, rows, count, constants).run() for count in (MANY, FEW)
            )
            if random_state() != drawn:
                raise Uncuttable(
                    "forward draws random numbers from Python or NumPy, and what it does with "
                    "them (dropping a layer, for example) may change between calls. Draw them with "
                    "torch, for arithmetic (torch.where), or write the stages by hand."
                )
            traces.append(generalise(many, few))
    training, evaluation = traces
    return Program(training, evaluation, common_places(training, evaluation), constants)


def random_state() -> tuple[Any, str]:
    """A state that differs after each draw of Python's or NumPy's random numbers."""
    return random.getstate(), repr(numpy.random.get_state())


class ShapeTracer(fx.Tracer):
    """Traces `model(*inputs)` once, with `instead` rows in place of `rows`."""

    def __init__(
        self,
        model: nn.Module,
        inputs: tuple[Any, ...],
        rows: int,
        instead: int,
        constants: dict[str, Tensor],
    ) -> None:
        """`constants`: tensors that forward uses and the model does not hold are put into it."""
        super().__init__()
        self.fake_mode, self.constants = FakeTensorMode(allow_non_fake_inputs=True), constants
        copies: dict[int, Any] = {}
        with FakeCopyMode(self.fake_mode):
            self.fake_model = copy.deepcopy(model, copies)
        self.names = names_of(model, self.fake_model, copies)  # id of a fake tensor → its name
        self.fakes = tree_map(lambda one: self._faked(one, rows, instead), inputs)
        self.nodes: dict[int, fx.Node] = {}  # id of a fake tensor → its node
        self.kept: list[Any] = []  # so that no id is given away again
        self.steps: list[ModelStep] = []
        self.saving: dict[int, int] = {}  # storage → bytes that the step keeps for backward
        self.inside = True  # a step, or what comes before forward: what is called there is none
        self.touched: dict[int, tuple[int, int]] = {}  # storage → its first and last step
        self.changed: dict[int, int] = {}  # storage → the last step that changed it in place
        self.held = {
            storage_of(one) for one in (*self.fake_model.parameters(), *self.fake_model.buffers())
        }

    def _faked(self, one: Any, rows: int, instead: int) -> Any:
        """A fake of an input: its first dimension is the rows, if it is as long."""
        if not isinstance(one, Tensor):
            return one
        if one.dim() == 0 or len(one) != rows:
            return self.fake_mode.from_tensor(one)
        with self.fake_mode:
            return torch.empty((instead, *one.shape[1:]), dtype=one.dtype, device=one.device)

    def run(self) -> ModelGraph:
        """The graph of a run.  Raises Uncuttable."""
        saving = torch.autograd.graph.saved_tensors_hooks(self._note_saved, lambda tensor: tensor)
        functions = autograd_functions_traced(self)
        with self.fake_mode, torch.enable_grad(), without_fast_paths(), saving, functions:
            try:
                with _FunctionMode(self):
                    graph = self.trace(self.fake_model)
            except Uncuttable:
                raise
            except Exception as error:
                raise refusal(error) from error
        for name, one in self.fake_model.named_buffers():
            if id(one) not in self.names:
                raise Uncuttable(
                    f"forward assigns the buffer {name}, which no stage would see. Change it in "
                    f"place: self.{name.rpartition('.')[2]}.copy_(new)."
                )
        inputs = tuple(node for node in graph.nodes if node.op == "placeholder")
        return ModelGraph(graph, inputs, tuple(self.steps), self._joined())

    # What fx.Tracer asks while it traces

    def create_args_for_root(self, *_: Any, **__: Any) -> tuple[Any, list[Any]]:
        tensors = [one for one in tree_leaves(self.fakes) if isinstance(one, Tensor)]
        self.device = tensors[0].device
        for tensor in tensors:
            self._describe(tensor, self.graph.placeholder("given"))
            self.touched[storage_of(tensor)] = 0, 0
        self.inside = False
        # The module is called and not its forward, because its hooks belong to it.
        return self.fake_model, list(self.fakes)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a stage keeps the module whole: modules of torch.nn that contain no others."""
        whole = isinstance(m, nn.MultiheadAttention) or nn.utils.parametrize.is_parametrized(m)
        return type(m).__module__.startswith("torch.nn.") and (whole or not any(m.children()))

    def call_module(
        self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        name = self.submodule_paths.get(m) if self.submodule_paths else None
        if self.inside or not name or not self.is_leaf_module(m, name):
            return forward(*args, **kwargs)
        # Not `forward`, which also runs hooks: those run in the stage, with the real module.
        return self.step("call_module", name, m.forward, args, kwargs, name=type(m).__name__)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        return attr_val

    def create_arg(self, a: Any) -> Any:
        return map_aggregate(a, self._argument)

    # What it writes down

    def step(
        self,
        kind: str,
        target: Any,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        name: str,
    ) -> Any:
        """Run a call and record it if it returns or changes tensors."""
        if self.inside:
            return run(*args, **kwargs)
        self.inside, self.saving = True, {}
        try:
            given = [one for one in leaves_of((args, kwargs)) if isinstance(one, Tensor)]
            versions = [tensor._version for tensor in given]
            returned = run(*args, **kwargs)
            leaves = tree_leaves(returned)
            made = [one for one in leaves if isinstance(one, Tensor)]
            changed = [t for t, v in zip(given, versions, strict=True) if t._version != v]
            if not (made or changed):
                return returned  # a size or a dtype: known before anything runs
            if torch.is_autocast_enabled(self.device.type):
                raise Uncuttable(
                    f"at {here()} forward itself uses torch.autocast. Leave the precision to the "
                    'Trainer (precision="bfloat16"), or call .to(dtype).'
                )
            node = self.graph.create_node(
                kind, target, self.create_arg(args), self.create_arg(kwargs), name=name
            )
            node.meta["no_grad"] = not torch.is_grad_enabled()
            if isinstance(returned, Tensor):
                nodes = [self._describe(returned, node)]
            else:
                nodes = [
                    self._describe(one, self.graph.call_function(leaf_at, (node, at)))
                    for at, one in enumerate(leaves)
                    if isinstance(one, Tensor)
                ]
            place = len(self.steps)
            self.kept.append(given)
            for tensor in (*given, *made):
                first, _ = self.touched.get(storage_of(tensor), (place, place))
                self.touched[storage_of(tensor)] = first, place
            self.changed.update((storage_of(tensor), place) for tensor in changed)
            saved = {s: size for s, size in self.saving.items() if s not in self.held}
            self.steps.append(ModelStep(node, tuple(nodes), name, here(), saved))
            return returned
        finally:
            self.inside = False

    def _describe(self, tensor: Tensor, node: fx.Node) -> fx.Node:
        node.meta["value"] = Value.of(tensor)
        self.nodes[id(tensor)] = node
        self.kept.append(tensor)
        return node

    def _note_saved(self, tensor: Tensor) -> Tensor:
        self.kept.append(tensor)
        self.saving[storage_of(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    def _argument(self, given: Any) -> Any:
        """The node or value that represents an argument in the graph."""
        if isinstance(given, torch.device):
            return StageDevice() if given == self.device else given
        if not isinstance(given, Tensor):
            return given
        if id(given) not in self.nodes:
            name = self.names.get(id(given))
            if name is None and isinstance(given, FakeTensor):
                raise Uncuttable(
                    f"at {here()} it uses a tensor {tuple(given.shape)} that is neither a "
                    "parameter, a buffer nor a traced result; perhaps it is in a list of a module. "
                    "Make it a buffer, or write the stages by hand."
                )
            if name is None:
                name = f"_constant_{id(given)}"
                self.constants[name] = given
            self.nodes[id(given)] = self.graph.create_node("get_attr", name)
            self.kept.append(given)
        return self.nodes[id(given)]

    def _joined(self) -> frozenset[int]:
        """The places where no stage may begin, because a tensor is changed in place.

        Stages get copies, so everything from its first use to its last change must be in one stage.
        For the model's own tensors it is everything to the last use, because each exists only once.
        """
        joined: set[int] = set()
        for storage, last in self.changed.items():
            first, end = self.touched[storage]
            joined.update(range(first + 1, (end if storage in self.held else last) + 1))
        return frozenset(joined)


class _FunctionMode(TorchFunctionMode):
    """Gets each function of torch that forward calls, before it runs."""

    def __init__(self, tracer: ShapeTracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, target = getattr(func, "__name__", str(func)), func
        if name == "__get__":  # x.T, x.shape
            name = func.__self__.__name__
            target = operator.attrgetter(name)
        return self.tracer.step("call_function", target, func, args, kwargs or {}, name=name)


@contextlib.contextmanager
def autograd_functions_traced(tracer: ShapeTracer) -> Iterator[None]:
    """In the block the tracer gets each torch.autograd.Function, which bypass every mode."""
    plain = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        run = plain.__get__(None, cls)
        return tracer.step("call_function", run, run, args, kwargs, name=cls.__name__)

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = plain  # type: ignore[method-assign]


@contextlib.contextmanager
def without_fast_paths() -> Iterator[None]:
    """PyTorch's transformer layers use their differentiable path."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def leaf_at(returned: Any, at: int) -> Any:
    """One of the tensors that a step returned."""
    return tree_leaves(returned)[at]


def leaves_of(tree: Any) -> list[Any]:
    """The leaves of a tree of arguments, slices included."""
    found: list[Any] = []
    map_aggregate(tree, found.append)
    return found


def storage_of(tensor: Tensor) -> int:
    """Tensors that share memory have the same."""
    return int(StorageWeakRef(tensor.untyped_storage()).cdata)  # type: ignore[no-untyped-call]


def names_of(model: nn.Module, fake_model: nn.Module, copies: dict[int, Any]) -> dict[int, str]:
    """The names of all tensors of the fake model, by id: parameters, buffers, plain attributes."""
    named = [*fake_model.named_parameters(), *fake_model.named_buffers()]
    names = {id(tensor): name for name, tensor in named}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and id(value) in copies:
                names.setdefault(id(copies[id(value)]), f"{path}.{name}".lstrip("."))
    return names


# One graph for any number of rows


def generalise(many: ModelGraph, few: ModelGraph) -> ModelGraph:
    """The trace for any number of rows.  Raises Uncuttable if there is none."""
    for one, other in zip(many.steps, few.steps, strict=False):
        if _key(one) != _key(other):
            raise Uncuttable(_other_calls(one, other))
    if len(many.steps) != len(few.steps):
        raise Uncuttable(_other_calls(max(many.steps, few.steps, key=len)[-1], None))
    for one, other in zip(many.steps, few.steps, strict=True):
        if len(one.made) != len(other.made):  # rows.unbind()
            raise Uncuttable(_other_calls(one, other))
    said = {step.node: str(step) for step in many.steps}
    for node, other_node in zip(many.graph.nodes, few.graph.nodes, strict=True):
        where = said.get(node, "what forward returns")
        node.args = _general(node.args, other_node.args, where)
        node.kwargs = _general(node.kwargs, other_node.kwargs, where)
        if "value" in node.meta:
            value, less = node.meta["value"], other_node.meta["value"]
            node.meta["value"] = dataclasses.replace(
                value,
                sizes=tuple(map(size_of, value.sizes, less.sizes)),
                bytes=size_of(value.bytes, less.bytes),
            )
    steps = []
    for step, other_step in zip(many.steps, few.steps, strict=True):
        more, fewer = step.saved, [*other_step.saved.values()]
        if len(more) != len(fewer):  # a kernel may keep other things for few rows
            fewer = [size * FEW / MANY for size in more.values()]
        saved = dict(zip(more, map(size_of, more.values(), fewer), strict=True))
        steps.append(dataclasses.replace(step, saved=saved))
    return ModelGraph(many.graph, many.inputs, tuple(steps), many.joined | few.joined)


def _key(step: ModelStep) -> tuple[Any, ...]:
    """The parts of a call that are equal in another run."""
    return step.module, step.name, step.where


def _general(many: Any, few: Any, where: str) -> Any:
    """One tree of arguments from two."""
    if isinstance(many, slice) and isinstance(few, slice):
        ends = ("start", "stop", "step")
        return slice(*(_general(getattr(many, end), getattr(few, end), where) for end in ends))
    parts, spec = tree_flatten(many)
    others, same_spec = tree_flatten(few)
    if spec == same_spec and spec.num_nodes > 1:
        pairs = zip(parts, others, strict=True)
        return tree_unflatten([_general(one, other, where) for one, other in pairs], spec)
    if isinstance(many, fx.Node) and isinstance(few, fx.Node) and many.name == few.name:
        return many
    if type(many) is type(few):
        if many == few:
            return many
        if isinstance(many, int | float) and not isinstance(many, bool):
            found = Rows.of(many, few)
            if found is not None:
                return found
    raise Uncuttable(
        f"{where} depends on the number of rows in a way that cannot be traced, or changes between "
        f"calls: {many!r} for {MANY} rows, {few!r} for {FEW}. "
        "Compute it with tensors, or outside forward."
    )


def _other_calls(one: ModelStep, other: ModelStep | None) -> str:
    instead = f" and {other}" if other is not None else ""
    return (
        f"what forward calls depends on the number of rows: {one}{instead}, for {MANY} rows and "
        f"for {FEW}. A last batch may be smaller, so there must be one list of steps for all: use "
        "operations on the whole batch instead of a loop or an `if`."
    )


# Where it can be cut


def common_places(training: ModelGraph, evaluation: ModelGraph) -> dict[int, int]:
    """The places at which both can be cut, with 0 and the end.

    `F.dropout(x, 0.1, self.training)` has a different argument in each mode, and stochastic depth
    makes calls that evaluation does not make. A neighbor expects the same tensors in both modes, so
    a place counts only if the two are alike there and pass on the same tensors.
    """
    same = dict(zip(training.inputs, evaluation.inputs, strict=True))
    blocks = difflib.SequenceMatcher(
        a=[(*_key(step), len(step.made)) for step in training.steps],
        b=[(*_key(step), len(step.made)) for step in evaluation.steps],
        autojunk=False,
    ).get_matching_blocks()
    places = {}
    for block in blocks:
        for offset in range(block.size + 1):
            a, b = block.a + offset, block.b + offset
            handed = training.crossing(a)
            if (
                a not in training.joined
                and b not in evaluation.joined
                and [same.get(node) for node in handed] == evaluation.crossing(b)
                # A gradient must flow back through the cut, and the next stage needs the rows.
                and any(node.meta["value"].requires_grad for node in handed)
                and rows_in(handed) is not None
            ):
                places[a] = b
            if offset < block.size:
                same.update(zip(training.steps[a].made, evaluation.steps[b].made, strict=True))
    return places | {0: 0, len(training.steps): len(evaluation.steps)}


def rows_in(nodes: Sequence[fx.Node]) -> tuple[int, int, int] | None:
    """How to compute the number of rows: the index of a tensor, its dimension, the divisor."""
    for which, node in enumerate(nodes):
        for dim, size in enumerate(node.meta["value"].sizes):
            if isinstance(size, Rows) and isinstance(size.times, int) and not size.plus:
                return which, dim, size.times
    return None


# Messages for a model that cannot be cut

# As frames name their files. Links are not followed, or below a linked .venv torch were the model.
TORCH = str(Path(torch.__file__).parent)
NN = f"{TORCH}{os.sep}nn{os.sep}"


def here() -> str:
    """The line of the model's code that runs now: the innermost one outside PyTorch."""
    frames = (frame for frame, _ in traceback.walk_stack(None))
    ours = (TORCH, __file__)
    own = next(frame for frame in frames if not frame.f_code.co_filename.startswith(ours))
    return f"{short(own.f_code.co_filename)}:{own.f_lineno}"


def refusal(error: Exception) -> Uncuttable:
    """The error for a model whose forward could not be traced."""
    where, line = line_of(error)
    kind, said = type(error).__name__, (str(error).strip().splitlines() or [""])[0].rstrip(".")
    if "DataDependent" in kind:
        return Uncuttable(
            f"at {where}, `{line}` depends on the numbers in a tensor, so "
            "the list of steps to cut is not fixed. Decide it outside forward, or replace the "
            "branch by arithmetic (torch.where); or write the stages by hand."
        )
    if "DynamicOutputShape" in kind:
        return Uncuttable(
            f"at {where}, `{line}` makes a tensor whose size depends on "
            "the numbers in another one, so the next stage could not know what it receives. Use "
            "a mask of fixed size (torch.where), or write the stages by hand."
        )
    return Uncuttable(
        f"its forward fails at {where}, `{line}`, when it runs on tensors "
        f"without numbers: {kind}: {said}. "
        "If it fails with the sample itself, too, fix that; else write the stages by hand."
    )


def line_of(error: BaseException) -> tuple[str, str]:
    """Where in the model's code an error arose: `model.py:31`, and the text of that line.

    If the error is in a module of torch.nn, its line is named after the model's.
    """
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    found = next((f for f in reversed(frames) if not f.filename.startswith(TORCH)), frames[-1])
    where = f"{short(found.filename)}:{found.lineno}"
    blamed = [f for f in frames[frames.index(found) + 1 :] if f.filename.startswith(NN)]
    if blamed and not blamed[-1].filename.endswith("module.py"):  # which calls every forward
        file = blamed[-1].filename.removeprefix(TORCH)
        where += f" (in torch{file}:{blamed[-1].lineno}, {blamed[-1].name})"
    return where, (found.line or "").strip()


def short(file: str) -> str:
    """A file relative to the current folder, if it is inside it."""
    near = os.path.relpath(file)
    return file if near.startswith("..") else near
