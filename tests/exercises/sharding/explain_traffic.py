"""How much a step sends, as the trace of the run tells.

These mistakes belong to both ``sharding.Zero1Optimizer`` and ``sharding.Zero2Optimizer``.
"""

from collections import Counter

from multigpu.checking.verdicts import listed

BYTES = 8  # of a number in float64


def calls_of(report, step, rank):
    """The calls that one rank made in one step, from zero_grad on: hooks can send in backward."""
    begin, end = report.note(step, rank)["times"]
    return [call for call in report.answer.trace.of(rank) if begin <= call.time <= end]


def elements_sent(call, n):
    """What one rank's part of a call costs in a ring, in elements, but for the factor (n-1)/n.

    An all-reduce of Ψ elements costs 2 Ψ, a reduce-scatter, all-gather, reduce or broadcast Ψ.
    """
    elements = call.bytes / BYTES  # of this rank's input, or of the buffer that is filled
    return {
        "all_reduce": 2 * elements,
        "all_gather": n * elements,
        "send": elements * n / (n - 1),
        "recv": 0,
        "barrier": 0,
    }.get(call.op, elements)


def examine_traffic(report):
    """More than what is allowed is refused; returns a remark on what is allowed, but not least."""
    n, total = report.n, report.total
    filled_up = n * report.bound  # one direction, where every share is as long as the longest
    slack = 2 * len(report.trained) + 2 * n  # flags and counts
    least = 2 * filled_up + slack
    for step in range(len(report.right)):
        calls = [call for rank in range(n) for call in calls_of(report, step, rank)]
        sent = sum(elements_sent(call, n) for call in calls) / n
        most = least + (report.most_traffic - 2) * total
        if sent > most:
            raise too_much(report, step, calls, sent)
    if sent <= least:
        return []
    return [
        f"{report.function}: {n} ranks send {sent / total:.1f} Ψ elements per rank and step"
        f" (Ψ = {total}). 2 Ψ is possible: an all-reduce brings every gradient to every rank, and"
        " only its owner needs it. reduce or reduce_scatter, then broadcast or all_gather."
    ]


def too_much(report, step, calls, sent):
    """Why, by what was called."""
    costs = Counter()
    for call in calls:
        costs[call.op] += elements_sent(call, report.n) / report.n
    parts = [f"{op} {cost / report.total:.1f} Ψ" for op, cost in costs.most_common() if cost]
    came = f"{sent / report.total:.1f} Ψ: {listed(parts)}"
    allowed = f"a step sends at most {report.most_traffic} Ψ elements per rank, Ψ = {report.total}"
    if report.most_traffic == 2 and costs["all_reduce"] >= 1.5 * report.total:
        return report.wrong(
            "gradients_to_everyone",
            f"each gradient is reduced to its owner only; {allowed}",
            came,
            "all_reduce gives the mean to every rank. dist.reduce(p.grad, dst=owner), or"
            " dist.reduce_scatter, give it to the one that steps with it.",
            step=step,
        )
    return report.wrong(
        "too_much_traffic",
        allowed,
        came,
        "something travels more than once, or to everybody: gradients as lists of all ranks'"
        " (all_gather), or weights through an all-reduce with zeros of the others.",
        step=step,
    )
