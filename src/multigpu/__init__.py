"""multigpu: from training on one GPU to training on many."""

from typing import TYPE_CHECKING, Any

from multigpu import ranks
from multigpu.devices import gpus, virtual_gpus

if TYPE_CHECKING:
    from multigpu.ranks import RankError, run_ranks

__all__ = ["RankError", "gpus", "run_ranks", "virtual_gpus"]


def __getattr__(name: str) -> Any:
    """Import what belongs to the ranks when it is asked for."""
    if name in ("RankError", "run_ranks"):
        return getattr(ranks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
