"""How gradients are cut into buckets, and in words what a rank has in place of a sum."""

from collections import Counter

from multigpu.checking.comparing import factor_between, recognise
from multigpu.checking.verdicts import times

from .one_process import added

# Mistakes that only buckets and no_sync make: what the gradient is, and which code usually does it.
OF_BUCKETS = {
    "sent_too_early": (
        "zero everywhere",
        "the bucket was sent before this gradient was ready, with zeros in its place, or"
        " what arrived was not copied from there. What counts the gradients of a bucket"
        " begins anew in every step: in sync_gradients.",
    ),
    "divided_by_passes": (
        "the mean divided by the number of backward passes",
        "no_sync adds up. Whoever wants the mean over passes divides the loss.",
    ),
    "only_last_pass": (
        "the mean of what the last backward gave",
        "the passes inside no_sync are lost: something overwrote their gradients.",
    ),
    "earlier_not_averaged": (
        "the mean of what the last backward gave, and this rank's own gradients of the"
        " passes inside no_sync",
        "the whole of .grad is averaged, not only what the last backward added.",
    ),
}


def cuts(sizes, limit):
    """The two ways to cut sizes into buckets: closed before the overflow, and after it."""
    before, after = [], []
    for size in sizes:
        if not before or sum(before[-1]) + size > limit:
            before.append([])
        before[-1].append(size)
        if not after or sum(after[-1]) > limit:
            after.append([])
        after[-1].append(size)
    return [before, after]


def described(came, parts):
    """What came in place of the sum of one rank's own gradients."""
    if came is None:
        return "None"
    total = added(parts)
    if total is None:
        return "no zeros, although this rank did not use it"
    factor = factor_between(came.value, total)
    if factor is not None:
        return f"{times(factor)} that"
    known = {"that, but rounded": total}
    known |= {f"that of pass {i + 1} alone": p for i, p in enumerate(parts) if p is not None}
    return recognise(came.value, known) or "another tensor"


def twice_each(calls):
    """Whether there are two calls with each number of bytes, or four, and so on."""
    return all(number % 2 == 0 for number in Counter(call.bytes for call in calls).values())
