"""Spares a check the seconds that torch's first optimizer step or process group costs.

Optimizers import ``torch._dynamo``, the front end of torch.compile, only to tell it to stay away
from them; ``init_process_group`` tells it to forget what it knew, and DistributedDataParallel asks
how it would treat it.  Where nothing is compiled a stand-in can hear and answer that.

``backward(gradient)`` imports the compiler's symbolic algebra, and sympy with it, to compare two
shapes.  Where shapes are numbers, another stand-in can do that.

Measured on two cores, with stand-ins and without: a check of ``train_step`` takes 2.3 s, not 4.3 s,
one of ``NaiveDDP`` 5.5 s, not 12 s, one of ``hangs.early_stop`` 4.4 s, not 13 s.

It is for checks only: torch remembers the answers of a stand-in, and what is compiled later in the
same process would be wrong.
"""

import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

DYNAMO, SHAPES = "torch._dynamo", "torch.fx.experimental.symbolic_shapes"


class Loading:
    """``tell`` is called when a real module is about to be imported in place of a stand-in."""

    tell: Callable[[], None] | None = None


class StandIn(types.ModuleType):
    """Stands in for a module; whatever it does not know itself loads the real one."""

    def __init__(self, name: str, **known: Any) -> None:
        super().__init__(name)
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        # Someone looks through all modules, or wants to know whether this is a package.
        if name.startswith("__") and (name != "__path__" or self.__name__ != DYNAMO):
            raise AttributeError(name)
        return getattr(self.real(), name)

    def real(self) -> types.ModuleType:
        """The module itself, in the place of the stand-in from now on."""
        if sys.modules.get(self.__name__) is self:
            if Loading.tell:
                Loading.tell()
            package, _, name = self.__name__.rpartition(".")
            del sys.modules[self.__name__]
            vars(sys.modules.get(package, self)).pop(name, None)
        return importlib.import_module(self.__name__)


class KnownPart:
    """Something in a module that a stand-in knows in part."""

    def __init__(self, module: str, part: str, **known: Any) -> None:
        vars(self).update(known, _of=(module, part))

    def _real(self) -> Any:
        module, part = self._of
        standin = sys.modules[module]
        return getattr(standin.real() if isinstance(standin, StandIn) else standin, part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real(), name, value)


def spare_the_compiler() -> None:
    """Put the stand-ins where torch looks, unless the compiler is loaded already."""
    import torch

    if DYNAMO not in sys.modules:
        sys.modules[DYNAMO] = torch._dynamo = StandIn(
            DYNAMO,
            graph_break=lambda msg="": None,  # outside torch.compile there is no graph to break
            disable=lambda fn, recursive=True, **_: fn,  # and nothing has to be switched off
            trace_rules=KnownPart(DYNAMO, "trace_rules", clear_lru_cache=lambda: None),
            # The next two answer as they do with the compiler's default settings.
            utils=KnownPart(DYNAMO, "utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),
            config=KnownPart(DYNAMO, "config", error_on_nested_fx_trace=True),
        )
    if SHAPES not in sys.modules:
        sys.modules[SHAPES] = StandIn(
            SHAPES,
            sym_eq=lambda one, other: one == other,  # of two shapes whose sizes are numbers
            expect_true=lambda answer, skip=0: answer,  # it is known already
        )
