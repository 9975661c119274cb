"""Sees each call of a model, and writes it down as a step.

A TorchFunctionMode is told of each function of torch that forward calls, before it runs. Modules of
torch.nn are not looked into: so a stage holds real Linear, Dropout and BatchNorm modules, and
`train()` and `eval()` do what they always do.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from multigpu.training.cutting.program import (
    Constant,
    Held,
    Here,
    Program,
    Shape,
    Step,
    Value,
    notes_in,
)
from multigpu.training.cutting.refusing import Refused, here
from multigpu.training.cutting.watching import seen_functions, without_fast_paths


class Recorder(TorchFunctionMode):
    """Writes down the steps of `twin`, a fake copy of `model`; `memo` is that of the copying."""

    def __init__(
        self,
        model: nn.Module,
        twin: nn.Module,
        memo: dict[int, Any],
        inputs: Sequence[Tensor],
    ) -> None:
        super().__init__()
        self.names = names_of(model, twin, memo)  # id of a fake tensor → its name
        self.kept: list[Any] = [twin]  # so that no id is given away again
        self.values: dict[int, int] = {}  # id of a fake tensor → its number
        self.shapes: dict[int, Shape] = {}
        self.steps: list[Step] = []
        self.constants: list[Tensor] = []
        self.saved: list[dict[int, Any]] = []
        self.saving_now: dict[int, Any] = {}
        self.touched: dict[int, tuple[int, int]] = {}  # storage → its first and last step
        self.changed: dict[int, int] = {}  # storage → the last step that changed it in place
        self.inside = False
        self.buffers = {name: id(one) for name, one in twin.named_buffers()}
        self.held = {storage_of(one) for one in (*twin.parameters(), *twin.buffers())}
        self.inputs = tuple(self.know(tensor) for tensor in inputs)
        self.device = inputs[0].device
        self.touched.update((storage_of(tensor), (0, 0)) for tensor in inputs)
        for path, module in twin.named_modules():
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
                self.write(args, kwargs, given, made, changed, **what)
            return returned
        finally:
            self.inside = False

    def write(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: list[Tensor],
        made: list[Tensor],
        changed: list[Tensor],
        *,
        name: str,
        module: str | None = None,
        function: Callable[..., Any] | None = None,
    ) -> None:
        """Add a step."""
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
        self.saved.append(self.saving_now)

    def know(self, tensor: Tensor) -> int:
        """Give a tensor the next number."""
        number = len(self.shapes)
        self.kept.append(tensor)
        self.values[id(tensor)] = number
        self.shapes[number] = Shape(
            tuple(tensor.shape),
            tensor.dtype,
            tensor.requires_grad,
            tensor.numel(),
            storage_of(tensor),
            not tensor.is_contiguous(),
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

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """See what no mode is told of: what is kept for backward, and own autograd functions."""

        def keep(tensor: Tensor) -> Tensor:
            storage = storage_of(tensor)
            if storage not in self.held:
                self.kept.append(tensor)
                self.saving_now[storage] = tensor.untyped_storage().nbytes()
            return tensor

        saving = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with saving, seen_functions(self.call), without_fast_paths():
            yield

    def refuse_rebound(self, twin: nn.Module) -> None:
        """Raise where forward has put another tensor in the place of a buffer."""
        for name, one in twin.named_buffers():
            if self.buffers.get(name) != id(one) and id(one) not in self.names:
                raise Refused(
                    f"forward assigns the buffer {name}, which no stage would see. Change it in "
                    f"place: self.{name.rpartition('.')[2]}.copy_(new)."
                )

    def program(self, returned: Any) -> Program:
        """All that was seen."""
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


def is_leaf(module: nn.Module) -> bool:
    """Whether a stage keeps the module whole: those of torch.nn that contain no others."""
    if type(module) is nn.MultiheadAttention:
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


def storage_of(tensor: Tensor) -> int:
    """Tensors that share memory have the same."""
    return int(tensor.untyped_storage()._cdata)
