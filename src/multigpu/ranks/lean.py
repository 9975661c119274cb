"""Spares a process the two seconds that torch's first optimizer step costs.

Optimizers import ``torch._dynamo``, the front end of torch.compile, only to tell it to stay away
from them.  Where nothing is compiled a stand-in can say that.
"""

import importlib
import sys
import types
from typing import Any

NAME = "torch._dynamo"


class Standin(types.ModuleType):
    """Has the two functions that optimizers call; whatever else is asked for loads the real one."""

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
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
            del vars(sys.modules["torch"])["_dynamo"]
        return getattr(importlib.import_module(NAME), name)


def spare_the_compiler() -> None:
    """Put the stand-in where torch looks, unless the compiler is loaded already."""
    import torch

    if NAME not in sys.modules:
        sys.modules[NAME] = torch._dynamo = Standin()
