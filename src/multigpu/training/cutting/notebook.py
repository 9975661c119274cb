"""Where a recorder writes the steps of a model down: each tensor has a number, each call a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_map

from multigpu.training.cutting.program import Constant, Held, Here, Program, Shape, Step, Value
from multigpu.training.cutting.refusing import Refused, here


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
