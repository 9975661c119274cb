"""Which side a mistake belongs to, and the situation in which it was seen."""

from multigpu.checking import Wrong
from multigpu.checking.wording import count


def teller(training, side, expected, *, function=None):
    """``wrong(mistake, came, usually)`` about one side of one step.

    The mistake is that side's, or that of ``function`` ("server_step").
    """
    workers = count(training.world - 1, "worker")
    situation = f"step {side.step + 1} with {workers}" if training.world > 1 else "no workers"

    def wrong(mistake, came, usually, *, where=None):
        return Wrong(
            f"{function or side.function}.{mistake}",
            expected=f"{expected} ({situation})",
            came=came,
            usually=usually,
            where=where or side.where,
        )

    return wrong
