"""What is wrong with ``no_sync``, in an answer to ``distributed_data_parallel.BucketedDDP``."""

from multigpu.checking.verdicts import count

from .buckets import described
from .explain_training import agrees
from .explain_travel import calls_of
from .one_process import added


def examine_interruption(report):
    """An exception inside no_sync came out of it."""
    for rank, result in enumerate(report.results):
        if result["swallowed"]:
            raise report.wrong(
                "swallows_exceptions",
                "an exception inside no_sync comes out of it",
                f"on rank {rank} it did not",
                "__exit__ returns True, or the yield stands in a try with an except. Training would"
                " go on as if nothing had happened.",
            )


def examine_quiet(report, step, rank):
    """Inside no_sync nothing was sent, and the gradients added up."""
    quiet = report.note(step, rank)["quiet"]
    if quiet is None:
        return
    begin, end = quiet["times"]
    calls = [c for c in report.answer.trace.of(rank) if begin <= c.time <= end]
    if calls:
        raise report.wrong(
            "sent_inside_no_sync",
            "inside no_sync nothing is sent, and sync_gradients does nothing",
            f"rank {rank} made {count(len(calls), 'call')}, the first one {calls[0].op} from"
            f" {calls[0].place}",
            "hooks run at every backward. They, and sync_gradients, must look at a flag that"
            " no_sync sets.",
            step=step,
        )
    passes = report.right[step].passes[:-1]
    for name in report.right[step].gradients:
        parts = [one[name][rank] for one in passes]
        came = quiet["gradients"].get(name)
        if agrees(came, added(parts), share_of=report.n):  # in the weights of earlier steps
            continue
        raise report.wrong(
            "not_added_up",
            f"after {len(passes)} backward pass{'es' if passes[1:] else ''} inside no_sync"
            f" {name}.grad is the sum of this rank's own gradients",
            f"on rank {rank} it is {described(came, parts)}",
            "inside no_sync .grad is left to autograd, which adds up. Nothing is divided or moved"
            " there.",
            step=step,
        )


def explain_silence(report, step, rank):
    """Say so if the first backward after no_sync sent nothing."""
    if calls_of(report, step, rank):
        return
    came = f"rank {rank} sent nothing, and its gradients are still its own"
    if "interrupted" in report.case.how:
        raise report.wrong(
            "stays_silent_after_an_exception",
            "after an exception inside no_sync the next backward averages the gradients again",
            came,
            "the flag of no_sync is set back after the yield, and an exception passes that by."
            " try: yield, finally: set it back.",
            step=step,
        )
    if any(report.note(s, rank)["quiet"] is not None for s in range(step + 1)):
        raise report.wrong(
            "stays_silent",
            "the first backward after no_sync averages the gradients again",
            came,
            "the flag of no_sync is never taken back. Set it back after the yield, best in a"
            " finally.",
            step=step,
        )
