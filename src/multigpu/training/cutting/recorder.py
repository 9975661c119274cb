"""Sees each call of a model, and has it written down as a step.

A TorchFunctionMode is told of each function of torch that forward calls, before it runs. Modules of
torch.nn are not looked into: so a stage holds real Linear, Dropout and BatchNorm modules, and
`train()` and `eval()` do what they always do.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from multigpu.training.cutting.notebook import Notebook, storage_of
from multigpu.training.cutting.program import notes_in
from multigpu.training.cutting.watching import seen_functions, without_fast_paths


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
