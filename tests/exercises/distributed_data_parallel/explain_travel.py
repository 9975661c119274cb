"""When gradients travel: what a run's trace says about overlapping and waiting.

These mistakes belong to both ``distributed_data_parallel.OverlappedDDP`` and
``distributed_data_parallel.BucketedDDP``.
"""

from itertools import pairwise

from multigpu.checking.verdicts import count, listed

STARTS = "every all-reduce is started during backward, as soon as what it sends is ready"


def calls_of(report, step, rank):
    """The collectives with gradients that one rank made in one step, as they were started."""
    begin, _, end = report.note(step, rank)["times"]
    return [
        call
        for call in report.answer.trace.collectives(rank)
        if begin <= call.time <= end and call.dtype == "float64"
    ]


def examine_waits(report, step, rank):
    """Every handle was waited for when sync_gradients returned."""
    end = report.note(step, rank)["times"][2]
    calls = calls_of(report, step, rank)
    waiting = [i for i, call in enumerate(calls) if call.end is None or call.end > end]
    if not waiting:
        return
    came = (
        f"on rank {rank} {len(waiting)} of {count(len(calls), 'all-reduce')} had not been waited"
        f" for, among them the one of {calls[waiting[0]].place}"
    )
    usually = "async_op=True returns a handle; the numbers are there after handle.wait()."
    mistake = "not_all_waited"
    if len(waiting) == len(calls):
        mistake = "never_waited"
    elif waiting == list(range(len(calls) - 1)):
        mistake = "last_handle_only"
        usually = "one handle was kept, or one was waited for. Keep all, and wait for each."
    raise report.wrong(
        mistake,
        "when sync_gradients returns, every all-reduce has been waited for",
        came,
        usually,
        step=step,
    )


def examine_handles(report):
    """Handles of earlier steps are let go of: a rank does not hold more after each step."""
    for rank, result in enumerate(report.results):
        held = [step["handles"] for step in result["steps"]]
        # Who holds on to those of one step longer may do so.
        if held[2:] and all(before < after for before, after in pairwise(held)):
            raise report.wrong(
                "keeps_handles",
                "handles that were waited for are let go of",
                f"on rank {rank} there were {listed(held)} handles after steps"
                f" {listed(range(1, len(held) + 1))}",
                "they stay in a list that is never emptied: what was sent stays in memory, and a"
                " loop over the list waits for all of it again.",
            )


def examine_writes(report, step, rank):
    """Nothing was written into a tensor between the start of its all-reduce and the wait for it."""
    calls = calls_of(report, step, rank)
    written = [call for call in calls if call.changed]
    if written:
        raise report.wrong(
            "written_on_the_way",
            "nobody writes into a tensor from the start of its all-reduce until it was waited for",
            f"on rank {rank} this happened to {len(written)} of {count(len(calls), 'all-reduce')},"
            f" among them the one of {written[0].place}",
            "the gradients were divided too early; or handles of the step before are still in the"
            " list, and go along with a division. The result arrives at any moment until wait(), so"
            " what is written before may or may not count. Write after wait(), and empty the list.",
            step=step,
        )


def last_ready_in(report, step, rank):
    """The moment at which the last gradient of a step was ready."""
    note = report.note(step, rank)
    return max(note["ready"].values(), default=note["times"][1])


def started_late(report, step, rank):
    """The collectives that started after the last gradient, if they are too many."""
    calls, last_ready = calls_of(report, step, rank), last_ready_in(report, step, rank)
    late = [call for call in calls if call.time > last_ready]
    # A thread of the learner's may be held up by other ranks: of it only the first one is asked.
    own = [call for call in late if call.thread == report.results[rank]["thread"]]
    return late if len(late) == len(calls) > 1 or len(own) > 1 else []


def examine_overlap(report, step, rank):
    """Only what the last gradient belongs to may start after it."""
    calls, last_ready = calls_of(report, step, rank), last_ready_in(report, step, rank)
    late = started_late(report, step, rank)
    if late:
        early = len(calls) - len(late)
        raise report.wrong(
            "starts_late" if early else "starts_after_backward",
            STARTS,
            f"when the last gradient was ready on rank {rank}, {early or 'none'} of"
            f" {count(len(calls), 'all-reduce')} had been started. The next one comes from"
            f" {late[0].place}",
            "they are started one by one in sync_gradients, or at the end of backward. Start each"
            " one in a hook: parameter.register_post_accumulate_grad_hook.",
            step=step,
        )
    blocking = [call for call in calls if blocks(call, last_ready, report.results[rank])]
    if blocking:
        raise report.wrong(
            "blocks_backward",
            "backward goes on at once, and sync_gradients waits",
            f"on rank {rank} {len(blocking)} of {count(len(calls), 'all-reduce')} were waited for"
            f" during backward: {listed(sorted({call.place for call in blocking}))}",
            "without async_op=True, and with .wait() right behind it, nothing is computed while the"
            " bytes travel.",
            step=step,
        )


def blocks(call, last_ready, result):
    """Whether the thread that runs backward was held up by this call."""
    held_up = call.waited if call.is_async else call.time
    in_backward = held_up is not None and held_up < last_ready
    return in_backward and call.thread == result["thread"]
