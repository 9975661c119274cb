"""A model as torch.fx graphs, in training and in evaluation mode, and where it can be cut.

    program = trace_both(model, (images,))
    print(program.training.graph)

fx.Tracer makes the graph, keeps modules of torch.nn whole and names them. But `forward` gets fake
tensors instead of the usual proxies: they have a shape, a dtype and a device but no memory. So `if
length > self.block` and `len(rows)` work, and a mode records each function that is called. Sizes
are numbers in the graph: a stage (stage.py) takes tensors of the shapes that were traced.

Why not torch.export, as torch.distributed.pipelining does? It decomposes every module, so dropout
and BatchNorm stay in the mode in which they were traced.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
import os
import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.fx.node import map_aggregate
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from multigpu.training.strategy import modes_kept


@dataclass(frozen=True)
class ModelStep:
    """One call in a graph: of a module of torch.nn, or of a function of torch."""

    node: fx.Node
    made: tuple[fx.Node, ...]  # each tensor that it returns
    name: str  # for people: "Linear", "softmax"
    where: str  # the line of the model's code: "model.py:31"
    saved: dict[int, int]  # storages kept for backward → bytes

    @property
    def module(self) -> str | None:
        """The full name of the module that it calls."""
        return str(self.node.target) if self.node.op == "call_module" else None

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """The call, and the nodes that take the tensors out of its result."""
        return tuple(dict.fromkeys((self.node, *self.made)))

    def __str__(self) -> str:
        inside = f" ({self.module})" if self.module else ""
        return f"{self.name}{inside} at {self.where}"


@dataclass(frozen=True)
class ModelGraph:
    """A model as steps, in the order in which it calls them, in one of its modes.

    `node.meta["value"]` is the fake tensor of a node.
    """

    graph: fx.Graph
    inputs: tuple[fx.Node, ...]  # the tensors among the inputs
    steps: tuple[ModelStep, ...]
    joined: frozenset[int]  # places where it must not be cut

    @functools.cached_property
    def crossings(self) -> list[list[fx.Node]]:
        """For each place: the tensors made before it that its step or a later one needs."""
        position = {node: at for at, step in enumerate(self.steps) for node in step.nodes}
        last = {
            node: max((position.get(user, len(self.steps)) for user in node.users), default=-1)
            for node in self.graph.nodes
        }
        crossings = [list(self.inputs)]  # into the first step also those that nothing needs
        for place, step in enumerate(self.steps, start=1):
            alive = (*crossings[-1], *step.made)
            crossings.append([node for node in alive if last[node] >= place])
        return crossings


@dataclass(frozen=True)
class TracedModel:
    """A model in both of its modes, and where it can be cut."""

    training: ModelGraph
    evaluation: ModelGraph
    places: dict[int, int]  # a step of training at which a stage may begin → that of evaluation


class Uncuttable(ValueError):
    """A model that cannot be cut; the message says why, where, and what to do."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the model cannot be cut: {why}")


def trace_both(model: nn.Module, inputs: tuple[Any, ...]) -> TracedModel:
    """The steps of `model(*inputs)` in training and in evaluation; the model is not changed.

    Raises ValueError if forward branches on the numbers in a tensor or at random, or uses tensors
    that cannot be traced.
    """
    graphs: list[ModelGraph] = []

    def drawn() -> Any:  # differs after each draw of Python's or NumPy's random numbers
        return random.getstate(), repr(numpy.random.get_state())

    before = drawn()
    with modes_kept(model):
        for train in (True, False):
            graphs.append(ShapeTracer(model.train(train), inputs).run())
    if drawn() != before:
        raise Uncuttable(
            "forward draws random numbers from Python or NumPy, and what it does with them "
            "(dropping a layer, for example) may change between calls. Draw them with torch, for "
            "arithmetic (torch.where), or write the stages by hand."
        )
    training, evaluation = graphs
    return TracedModel(training, evaluation, common_places(training, evaluation))


class ShapeTracer(fx.Tracer):
    """Traces `model(*inputs)` once."""

    def __init__(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        super().__init__()
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
        copies: dict[int, Any] = {}
        with FakeCopyMode(self.fake_mode):
            self.fake_model = copy.deepcopy(model, copies)
            self.given = copy.deepcopy(inputs)
        held = [*self.fake_model.named_parameters(), *self.fake_model.named_buffers()]
        self.held = {storage_of(tensor) for _, tensor in held}
        self.names = {id(tensor): name for name, tensor in held}
        for path, module in model.named_modules():  # plain attributes that are tensors
            for name, value in vars(module).items():
                if isinstance(value, Tensor) and id(value) in copies:
                    self.names.setdefault(id(copies[id(value)]), f"{path}.{name}".lstrip("."))
        self.nodes: dict[int, fx.Node] = {}  # id of a fake tensor → its node
        self.kept: list[Any] = []  # so that no id is given away again
        self.steps: list[ModelStep] = []
        self.saving: dict[int, int] = {}  # storage → bytes that the step keeps for backward
        self.inside = True  # a step, or not yet forward: calls there are not steps
        self.touched: dict[int, tuple[int, int]] = {}  # storage → its first and last step
        self.changed: dict[int, int] = {}  # storage → the last step that changed it in place

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
        # Stages get copies, so everything from a tensor's first use to its last change in place
        # must be in one stage. For the model's own tensors it is everything to the last use,
        # because each exists only once.
        joined: set[int] = set()
        for storage, last in self.changed.items():
            first, end = self.touched[storage]
            joined.update(range(first + 1, (end if storage in self.held else last) + 1))
        inputs = tuple(node for node in graph.nodes if node.op == "placeholder")
        return ModelGraph(graph, inputs, tuple(self.steps), frozenset(joined))

    # What fx.Tracer calls while it traces

    def create_args_for_root(self, *_: Any, **__: Any) -> tuple[Any, list[Any]]:
        for tensor in tensors_in(self.given):
            self._describe(tensor, self.graph.placeholder("given"))
            self.touched[storage_of(tensor)] = 0, 0
        self.device = tensors_in(self.given)[0].device
        self.inside = False
        # The module is called and not its forward, because its hooks belong to it.
        return self.fake_model, list(self.given)

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
        """The nodes in place of the tensors in an argument."""
        return map_aggregate(a, self._argument)

    # What it records

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
            given: list[Any] = []
            map_aggregate((args, kwargs), given.append)  # in slices, too
            given = tensors_in(given)
            versions = [tensor._version for tensor in given]
            returned = run(*args, **kwargs)
            made = tensors_in(returned)
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
                    self._describe(tensor, self.graph.call_function(tensor_at, (node, at)))
                    for at, tensor in enumerate(made)
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
        node.meta["value"] = tensor
        self.nodes[id(tensor)] = node
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
            if name is None:
                raise Uncuttable(
                    f"at {here()} it uses a tensor {tuple(given.shape)} that is neither a "
                    "parameter, a buffer nor a traced result; perhaps it is global, in a list of "
                    "a module, or made by NumPy. Make it a buffer, or write the stages by hand."
                )
            self.nodes[id(given)] = self.graph.create_node("get_attr", name)
            self.kept.append(given)
        return self.nodes[id(given)]


@dataclass(frozen=True)
class StageDevice:
    """Represents in a graph the device that it runs on."""


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


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors among the leaves of a tree, in order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def tensor_at(returned: Any, at: int) -> Tensor:
    """One of the tensors that a step returned."""
    return tensors_in(returned)[at]


def storage_of(tensor: Tensor) -> int:
    """Tensors that share memory have the same."""
    return int(StorageWeakRef(tensor.untyped_storage()).cdata)  # type: ignore[no-untyped-call]


def memory_order(tensor: Tensor) -> tuple[int, ...]:
    """The dimensions in memory order, the outermost first."""
    strides = tensor.stride()
    return tuple(sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim)))


def common_places(training: ModelGraph, evaluation: ModelGraph) -> dict[int, int]:
    """The places at which both can be cut, with 0 and the end.

    Stochastic depth makes calls that evaluation does not make, so a place is found again by the
    call that follows it. A neighbor receives the same shapes in both modes.
    """

    def calls(graph: ModelGraph) -> Iterator[Any]:
        """For each step what it calls, on which line, and how often that came before it."""
        seen: Counter[Any] = Counter()
        for step in graph.steps:
            kind = step.module, step.name, step.where
            yield kind, seen[kind]
            seen[kind] += 1

    def shapes(graph: ModelGraph, place: int) -> list[Any]:
        values = (node.meta["value"] for node in graph.crossings[place])
        return [(value.shape, value.dtype, memory_order(value)) for value in values]

    at = {call: place for place, call in enumerate(calls(evaluation))}
    places, last = {0: 0}, 0
    for a, call in enumerate(calls(training)):
        b = at.get(call, 0)
        if (
            b > last
            and a not in training.joined
            and b not in evaluation.joined
            and shapes(training, a) == shapes(evaluation, b)
            # A gradient must flow back through the cut.
            and any(node.meta["value"].requires_grad for node in training.crossings[a])
        ):
            places[a] = last = b
    return places | {len(training.steps): len(evaluation.steps)}


# Messages for a model that cannot be cut

# As frames name their files. Links are not followed: if .venv is a link, that would name another
# folder. With a separator at its end, because torchvision's folder begins alike.
TORCH = f"{Path(torch.__file__).parent}{os.sep}"


def here() -> str:
    """The line of the model's code that runs now: the innermost one outside PyTorch."""
    frames = (frame for frame, _ in traceback.walk_stack(None))
    ours = (TORCH, __file__)
    own = next(frame for frame in frames if not frame.f_code.co_filename.startswith(ours))
    return f"{short(own.f_code.co_filename)}:{own.f_lineno}"


def refusal(error: Exception) -> Uncuttable:
    """The error for a model whose forward could not be traced."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    found = next((f for f in reversed(frames) if not f.filename.startswith(TORCH)), frames[-1])
    at = f"at {short(found.filename)}:{found.lineno}, `{(found.line or '').strip()}`"
    kind, said = type(error).__name__, (str(error).strip().splitlines() or [""])[0].rstrip(".")
    if "DataDependent" in kind or "DynamicOutputShape" in kind:
        return Uncuttable(
            f"{at} depends on the numbers in a tensor, or makes a tensor whose size does, so the "
            "steps to cut and what a stage receives are not fixed. Decide it outside forward, or "
            "use arithmetic and masks of fixed size (torch.where); or write the stages by hand."
        )
    return Uncuttable(
        f"its forward fails {at}, when it runs on tensors without numbers: {kind}: {said}. "
        "If it fails with the sample itself, too, fix that; else write the stages by hand."
    )


def short(file: str) -> str:
    """A file relative to the current folder, if it is inside it."""
    near = os.path.relpath(file)
    return file if near.startswith("..") else near
