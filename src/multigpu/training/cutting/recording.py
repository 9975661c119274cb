"""Write down what a model calls, without computing anything.

A copy of the model runs on PyTorch's fake tensors: they have a shape, a dtype and a device but no
memory, and their number of rows is a symbol, as in torch.export. A TorchFunctionMode sees each
function of torch that forward calls. Modules of torch.nn are not looked into: so a stage holds real
Linear, Dropout and BatchNorm modules, and `train()` and `eval()` do what they always do.

Why not torch.export, as torch.distributed.pipelining does? It looks into every module, so dropout
and BatchNorm are fixed to the mode in which they were seen.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from multigpu.training.cutting.program import (
    Constant,
    Held,
    Here,
    Program,
    Rows,
    Shape,
    Step,
    Value,
)
from multigpu.training.cutting.refusing import here, refuse

FAKE_ROWS = 6  # any number but 0 and 1, which PyTorch treats apart


def record(model: nn.Module, inputs: tuple[Any, ...], *, device: torch.device) -> Program:
    """The steps of `model(*inputs)` in the mode (train or eval) that it is in.

    Raises ValueError where forward decides by the numbers in a tensor, and where it uses what
    cannot be seen.
    """
    from torch._dynamo.source import ConstantSource  # loads much

    fake_mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())

    def faked(tensor: Any) -> Any:
        if not isinstance(tensor, Tensor):
            return tensor
        if tensor.dim() == 0:
            return fake_mode.from_tensor(tensor)
        shape = (FAKE_ROWS, *tensor.shape[1:])
        meta = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
        dims = [DimDynamic.DUCK] + [DimDynamic.STATIC] * (tensor.dim() - 1)
        context: Any = StatelessSymbolicContext(dynamic_sizes=dims)
        return fake_mode.from_tensor(meta, symbolic_context=context, source=ConstantSource("rows"))

    memo: dict[int, Any] = {}
    with FakeCopyMode(fake_mode):
        twin = copy.deepcopy(model, memo)
    recorder = Recorder(model, twin, memo, device=device)
    flat, spec = tree_flatten(inputs)
    fakes = [faked(one) for one in flat]
    recorder.know_inputs([one for one in fakes if isinstance(one, Tensor)])
    with fake_mode, torch.enable_grad(), recorder.saving(), without_fast_paths():
        try:
            with recorder, symbolic_len():
                returned = twin(*tree_unflatten(fakes, spec))
        except Unseen as error:
            raise ValueError(str(error)) from None
        except Exception as error:
            raise refuse(error) from error
        return recorder.program(returned)


class Unseen(Exception):
    """A step used a tensor that nothing recorded has made."""


class Recorder(TorchFunctionMode):
    """Sees every function of torch that is called inside it, and writes it down as a Step."""

    def __init__(
        self, model: nn.Module, twin: nn.Module, memo: dict[int, Any], *, device: torch.device
    ) -> None:
        super().__init__()
        self.device = device
        self.names = names_of(model, twin, memo)  # id of a fake tensor → its name
        self.steps: list[Step] = []
        self.kept: list[Any] = [twin]  # so that no id is given away again
        self.values: dict[int, int] = {}  # id of a fake tensor → its number
        self.shapes: dict[int, Shape] = {}
        self.constants: list[Tensor] = []
        self.saved: list[dict[int, Any]] = []
        self.saving_now: dict[int, Any] = {}
        self.born: dict[int, int] = {}  # storage → the place of the step that made it
        self.changed: dict[int, int] = {}  # storage → the last step that changed it in place
        self.inside = False
        self.held_storages = {storage_of(t) for t in (*twin.parameters(), *twin.buffers())}
        for path, module in twin.named_modules():
            if is_leaf(module):
                module._forward_hooks.clear()  # the real ones run with the real module
                module._forward_pre_hooks.clear()
                module.forward = functools.partial(  # type: ignore[method-assign]
                    self.call_module, path, type(module).__name__, module.forward
                )

    def know_inputs(self, tensors: list[Tensor]) -> None:
        """Give the inputs their numbers."""
        self.inputs = tuple(self.know(tensor) for tensor in tensors)
        for tensor in tensors:
            self.born[storage_of(tensor)] = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.inside:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        if name == "__get__":  # x.T, x.shape
            name = func.__self__.__name__
            run: Callable[..., Any] = operator.attrgetter(name)
        else:
            run = func
        return self.call(func, args, kwargs, function=run, name=name)  # the mode is off in here

    def call_module(
        self, path: str, kind: str, forward: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """What the twin's modules of torch.nn do in the place of their forward."""
        if self.inside:
            return forward(*args, **kwargs)
        self.inside = True  # what a module of torch.nn calls is not looked at
        try:
            return self.call(forward, args, kwargs, module=path, name=kind)
        finally:
            self.inside = False

    def call(
        self,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        name: str,
        module: str | None = None,
        function: Callable[..., Any] | None = None,
    ) -> Any:
        """Run one step and write it down, if tensors come of it or are changed by it."""
        given = [one for one in leaves((args, kwargs)) if isinstance(one, Tensor)]
        versions = [version(tensor) for tensor in given]
        self.saving_now = {}
        returned = run(*args, **kwargs)
        made = [one for one in tree_leaves(returned) if isinstance(one, Tensor)]
        changed = [t for t, v in zip(given, versions, strict=True) if version(t) != v]
        if not made and not changed:
            return returned  # a size, a dtype: known before anything runs
        noted = map_aggregate((args, kwargs), self.note)
        place = len(self.steps)
        self.kept += [made, given]
        for tensor in made:
            self.born.setdefault(storage_of(tensor), place)
        for tensor in changed:
            self.changed[storage_of(tensor)] = place
        numbers = tuple(self.know(tensor) for tensor in made)
        self.steps.append(
            Step(module, function, name, tuple(noted[0]), dict(noted[1]), numbers, here())
        )
        self.saved.append(self.saving_now)
        return returned

    def know(self, tensor: Tensor) -> int:
        """Give a tensor the next number."""
        number = len(self.shapes)
        self.kept.append(tensor)
        self.values[id(tensor)] = number
        self.shapes[number] = Shape(
            tuple(symbolic(size) for size in tensor.shape),
            tensor.dtype,
            tensor.requires_grad,
            symbolic(tensor.numel()),
            storage_of(tensor),
        )
        return number

    def note(self, given: Any) -> Any:
        """What stands in a step for an argument."""
        if isinstance(given, Tensor):
            if id(given) in self.values:
                return Value(self.values[id(given)])
            if id(given) in self.names:
                return Held(self.names[id(given)])
            if isinstance(given, FakeTensor):
                raise Unseen(
                    f"the model cannot be cut: at {here()} it uses a tensor {tuple(given.shape)} "
                    "that no function of torch has made, as far as can be seen (a "
                    "torch.autograd.Function, or a list of tensors that the module keeps). Make it "
                    "a buffer or a torch.nn module, or write the stages by hand."
                )
            self.constants.append(given)
            return Constant(len(self.constants) - 1)
        if isinstance(given, torch.device):
            return Here() if given == self.device else given
        return symbolic(given)

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Note the storages that each step keeps for its backward pass."""

        def keep(tensor: Tensor) -> Tensor:
            storage = storage_of(tensor)
            if storage not in self.held_storages:
                self.kept.append(tensor)
                self.saving_now[storage] = symbolic(tensor.untyped_storage().nbytes())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            yield

    def program(self, returned: Any) -> Program:
        """All that was seen."""
        joined = {
            place
            for storage, last in self.changed.items()
            for place in range(self.born.get(storage, 0) + 1, last + 1)
        } | {last for storage, last in self.changed.items() if self.born.get(storage, -1) == 0}
        return Program(
            self.inputs,
            tuple(self.steps),
            tree_map(self.note, returned),
            self.shapes,
            tuple(self.constants),
            tuple(self.saved),
            frozenset(joined),
        )


def is_leaf(module: nn.Module) -> bool:
    """Whether a stage keeps the module whole: those of torch.nn that contain no others."""
    if isinstance(module, nn.MultiheadAttention):
        return True
    return type(module).__module__.startswith("torch.nn.modules.") and not any(module.children())


def names_of(model: nn.Module, twin: nn.Module, memo: dict[int, Any]) -> dict[int, str]:
    """The names of all tensors of the twin, by id: parameters, buffers, plain attributes."""
    named = [*twin.named_parameters(), *twin.named_buffers()]
    names = {id(tensor): name for name, tensor in named}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and id(value) in memo:
                names.setdefault(id(memo[id(value)]), f"{path}.{name}".lstrip("."))
    return names


def symbolic(given: Any) -> Any:
    """The number itself, or what it is made of where it depends on the number of rows."""
    kinds = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    kind = kinds.get(type(given))
    if kind is None:
        return given
    expression = given.node.expr
    if not expression.free_symbols:
        return kind(expression)
    rows = next(iter(expression.free_symbols))
    return Rows(expression, kind, str(expression).replace(str(rows), "rows"))


def leaves(tree: Any) -> list[Any]:
    """All that a tree of arguments holds, slices included."""
    found: list[Any] = []
    map_aggregate(tree, lambda one: found.append(one))
    return found


def storage_of(tensor: Tensor) -> int:
    """Tensors that share memory have the same."""
    return int(tensor.untyped_storage()._cdata)


def version(tensor: Tensor) -> int:
    """How often the tensor was changed in place."""
    return int(tensor._version) if not tensor.is_inference() else 0


@contextlib.contextmanager
def symbolic_len() -> Iterator[None]:
    """Inside it, len(tensor) is the symbol for the rows; Python's own would make it a number."""
    plain = builtins.len

    def len_(sized: Any) -> Any:
        return sized.shape[0] if isinstance(sized, FakeTensor) and sized.dim() else plain(sized)

    builtins.len = len_
    try:
        yield
    finally:
        builtins.len = plain


@contextlib.contextmanager
def without_fast_paths() -> Iterator[None]:
    """PyTorch's transformer layers shall take the way that can be differentiated."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
