"""Spares a process the seconds that torch's first optimizer step or process group costs.

Optimizers import ``torch._dynamo``, the front end of torch.compile, only to tell it to stay away
from them; ``init_process_group`` tells it to forget what it knew, and DistributedDataParallel asks
how it would treat it.  Where nothing is compiled a stand-in can hear and answer that.

``backward(gradient)`` imports the compiler's symbolic algebra, and sympy with it, to compare two
shapes.  Where shapes are numbers, another stand-in can do that.

torchmetrics imports scipy.signal only to give it back an old name; a third one has that name.
"""

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

NAME = "torch._dynamo"
SHAPES = "torch.fx.experimental.symbolic_shapes"
SIGNALS = "scipy.signal"


class Rules:
    """What the compiler would know about torch's functions: nothing yet."""

    @staticmethod
    def clear_lru_cache() -> None:
        """There is nothing to forget."""

    def __getattr__(self, name: str) -> Any:
        return getattr(real().trace_rules, name)


class Utils:
    """What DistributedDataParallel asks when it is made: how the compiler would treat it."""

    @staticmethod
    def get_optimize_ddp_mode() -> str:
        """As it is where nobody has changed the compiler's settings."""
        return "ddp_optimizer"

    def __getattr__(self, name: str) -> Any:
        return getattr(real().utils, name)


class Config:
    """What activation checkpointing asks: a setting that only the compiler's own traces heed."""

    error_on_nested_fx_trace = True  # as it is where nobody has changed it

    def __getattr__(self, name: str) -> Any:
        return getattr(real().config, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(real().config, name, value)


class Standin(types.ModuleType):
    """Has the functions that are called anyway; whatever else is asked for loads the real one."""

    trace_rules = Rules()
    utils = Utils()
    config = Config()

    def __init__(self) -> None:
        super().__init__(NAME)

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Outside torch.compile there is no graph to break."""

    @staticmethod
    def disable(fn: Any, recursive: bool = True, **_: Any) -> Any:
        """Outside torch.compile nothing has to be switched off."""
        return fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)  # someone looks through all modules
        return getattr(real(), name)


def real() -> types.ModuleType:
    """Torch's own module, in the place of the stand-in from now on."""
    if isinstance(sys.modules.get(NAME), Standin):
        del sys.modules[NAME]
        del vars(sys.modules["torch"])["_dynamo"]
    return importlib.import_module(NAME)


class InPlace(types.ModuleType):
    """Stands in for a module; whatever it does not have itself loads the real one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # someone looks through all modules
        return getattr(self._real(), name)

    def _real(self) -> types.ModuleType:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


class Shapes(InPlace):
    """Compares shapes whose sizes are numbers."""

    @staticmethod
    def sym_eq(one: Any, other: Any) -> Any:
        """Whether two shapes, or two sizes, are equal."""
        return one == other

    @staticmethod
    def expect_true(answer: Any, skip: int = 0) -> Any:
        """The answer: it is known already."""
        return answer


class Signals(InPlace):
    """Has what torchmetrics would add to the real one, so it adds nothing."""

    hamming = None

    @property
    def __path__(self) -> Any:  # type: ignore[override]
        """Where a module in it is looked for that somebody imports meanwhile."""
        return self._real().__path__


def spare_the_compiler() -> None:
    """Put the stand-ins where torch looks, unless the compiler is loaded already."""
    import torch

    if NAME not in sys.modules:
        sys.modules[NAME] = torch._dynamo = Standin()
    if SHAPES not in sys.modules:
        sys.modules[SHAPES] = Shapes(SHAPES)


@contextlib.contextmanager
def sparing_scipy() -> Iterator[None]:
    """Around the import of torchmetrics: what asks for scipy.signal later gets the real one."""
    standin = sys.modules.setdefault(SIGNALS, Signals(SIGNALS))
    try:
        yield
    finally:
        if isinstance(standin, Signals) and sys.modules.get(SIGNALS) is standin:
            del sys.modules[SIGNALS]
