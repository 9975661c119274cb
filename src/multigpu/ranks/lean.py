"""Spares a process the seconds that torch's first optimizer step or process group costs.

Optimizers import ``torch._dynamo``, the front end of torch.compile, only to tell it to stay away
from them; ``init_process_group`` tells it to forget what it knew, and DistributedDataParallel asks
how it would treat it.  Where nothing is compiled a stand-in can hear and answer that.
"""

import importlib
import sys
import types
from typing import Any

NAME = "torch._dynamo"


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


class Standin(types.ModuleType):
    """Has the functions that are called anyway; whatever else is asked for loads the real one."""

    trace_rules = Rules()
    utils = Utils()

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


def spare_the_compiler() -> None:
    """Put the stand-in where torch looks, unless the compiler is loaded already."""
    import torch

    if NAME not in sys.modules:
        sys.modules[NAME] = torch._dynamo = Standin()
