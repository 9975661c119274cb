"""Which side a mistake belongs to, and the situation in which it was seen."""

from multigpu.checking import Wrong
from multigpu.checking.verdicts import count

from .running import after_another

# What one side holds is wrong, and both sides could have done that.
EITHER = (
    "server_step.divided_twice",
    "server_step.gradients_sent_down",
    "server_step.no_gradients",
    "server_step.old_gradients",
    "server_step.old_where_missing",
    "server_step.other_weights",
    "server_step.rounded",
    "worker_step.other_weights",
    "worker_step.rounded",
    "worker_step.weights_left_out",
)


def teller(training, side, expected, *, function=None):
    """``wrong(mistake, came, usually)`` about one side of one step.

    The mistake is that side's, or that of ``function`` ("server_step").  The message says so where
    the exercise is the other function.
    """
    workers = count(training.workers, "worker")
    situation = f"step {side.step + 1} with {workers}" if training.world > 1 else "no workers"
    situation += after_another(training.earlier)

    def wrong(mistake, came, usually, *, where=None):
        blamed = function or side.function
        if blamed != side.function:  # a line of the other side, which was only looked at
            where = training.sides[side.step][0].where
        return Wrong(
            f"{blamed}.{mistake}",
            expected=f"{expected} ({situation})",
            came=came,
            usually=whose(f"{blamed}.{mistake}", training.exercise) + usually,
            where=where or side.where,
        )

    return wrong


def whose(message_id, exercise):
    """For example "the mistake is in server_step, which worker_step works with: "."""
    blamed = message_id.partition(".")[0]
    if blamed == exercise:
        return ""
    if message_id in EITHER:
        return f"the mistake is in {blamed} or in {exercise}: "
    return f"the mistake is in {blamed}, which {exercise} works with: "
