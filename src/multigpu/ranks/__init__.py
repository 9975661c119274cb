"""Starts N processes, traces every collective that they make, and explains what went wrong.

``run_ranks(fn, 4)`` runs ``fn`` on 4 ranks; start reading at ``run.py``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multigpu.ranks.backend import rank_device
    from multigpu.ranks.errors import RankError
    from multigpu.ranks.memory_limit import rank_memory
    from multigpu.ranks.recorder import span
    from multigpu.ranks.run import Results, run_ranks

__all__ = ["RankError", "Results", "rank_device", "rank_memory", "run_ranks", "span"]

HOMES = {
    "RankError": "errors",
    "Results": "run",
    "rank_device": "backend",
    "rank_memory": "memory_limit",
    "run_ranks": "run",
    "span": "recorder",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: the command must start quickly."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
