"""What is replaced in torch while virtual GPUs are on, and how it all comes back.

Only the lowest layer is replaced: the functions of torch._C that exist in a CUDA build. The Python
code above them (torch.cuda, torch.accelerator, torch.nn.parallel, optimizers, ...) runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

_MISSING = object()


class Patches:
    """Attributes that were set on modules and classes, with what was there before."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []
        self._entered = ExitStack()

    def set(self, owner: Any, name: str, value: Any) -> None:
        """`owner.name = value`, until `undo`."""
        self._before.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def wrap(self, owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
        """`owner.name = wrapper(owner.name)`, until `undo`."""
        self.set(owner, name, wrapper(getattr(owner, name)))

    def enter(self, context: AbstractContextManager[Any]) -> None:
        """Be in this context, until `undo`."""
        self._entered.enter_context(context)

    def undo(self) -> None:
        """Put everything back, last change first."""
        self._entered.close()
        while self._before:
            owner, name, value = self._before.pop()
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
