"""One class per mode of training. They know nothing of each other; strategy.py is what they share.

To add a mode, write a subclass of `Strategy` and name it here.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from multigpu.ranks.warming import spare_the_compiler

if TYPE_CHECKING:
    from multigpu.training.config import TrainConfig
    from multigpu.training.launch import Launch
    from multigpu.training.strategies.strategy import Strategy

HOMES = {
    "single": ("single", "Single"),
    "dp": ("data_parallel", "DataParallel"),
    "ddp": ("distributed", "Distributed"),
    "zero2": ("sharded", "Zero2"),
    "zero3": ("sharded", "Zero3"),
    "pipeline": ("pipeline", "Pipeline"),
}
MODES = tuple(HOMES)


def make_strategy(
    mode: str, config: TrainConfig, launch: Launch, *, own: ModuleType | None = None
) -> Strategy:
    """The strategy of a mode; its module is imported when it is asked for.

    `own` is a module of exercises: its functions or classes take the place of PyTorch's wrapper.
    """
    spare_the_compiler()  # else DDP, or the optimizer, imports it, for a second
    if own is not None:
        own_home: Any = importlib.import_module(f"{__name__}.own")
        return own_home.make_own(mode, config, launch, own)  # type: ignore[no-any-return]
    module, name = HOMES[mode]
    home = importlib.import_module(f"{__name__}.{module}")
    made: Any = getattr(home, name)
    strategy: Strategy = made(config, launch)
    return strategy
