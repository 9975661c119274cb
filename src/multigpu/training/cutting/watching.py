"""What a TorchFunctionMode is not told of, made visible while a model is recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch


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
