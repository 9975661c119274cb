"""How gradients are cut into buckets, and in words what a rank has in place of a sum."""

from multigpu.checking.comparing import factor_between, recognise
from multigpu.checking.wording import times

from .one_process import added


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
    known = {f"that of pass {i + 1} alone": p for i, p in enumerate(parts) if p is not None}
    return recognise(came.value, known) or "another tensor"
