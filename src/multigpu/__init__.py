"""multigpu: from training on one GPU to training on many."""

from typing import TYPE_CHECKING, Any

from multigpu import devices, ranks

if TYPE_CHECKING:
    from multigpu.devices import gpus, virtual_gpus
    from multigpu.ranks import RankError, run_ranks

__all__ = ["RankError", "gpus", "run_ranks", "virtual_gpus"]


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: the command must start quickly."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(devices if name in devices.__all__ else ranks, name)
