"""Changes to modules of PyTorch that are imported only where a program needs them."""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any


class _Finder:
    """Finds one module as Python does, and tells when it has been imported."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self._name, self._change = name, change

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """The spec of that module; None for all others, which Python finds by itself."""
        if name != self._name:
            return None
        spec: Any = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            run = spec.loader.exec_module

            def run_and_change(module: ModuleType) -> None:
                run(module)
                self._change(module)

            spec.loader.exec_module = run_and_change
        return spec


@contextlib.contextmanager
def once_imported(name: str, change: Callable[[ModuleType], None]) -> Iterator[None]:
    """Call ``change`` with a module: at once, or when it is imported in the block."""
    if name in sys.modules:
        change(sys.modules[name])
        yield
        return
    finder: Any = _Finder(name, change)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
