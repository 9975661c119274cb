"""How many elements an answer to ``sharding.Zero3`` sends in a step."""

from multigpu.checking.verdicts import count

EXPECTED = "one step sends at most 3 Ψ elements per rank: {most}, with Ψ = {psi}"
SLACK = 16  # elements for what a learner sends besides, such as a loss


def examine_travel(report, step, rank):
    """At most 3 Ψ: Ψ for forward, Ψ for backward, Ψ for the gradients."""
    if report.n == 1:
        return
    calls = calls_of(report, step, rank)
    sent = sum(volume(call) for call in calls)
    most = 3 * report.sizes.whole + SLACK
    if sent <= most:
        return
    psi = report.sizes.whole
    reduced = sum(volume(call) for call in calls if call.op == "all_reduce")
    expected = EXPECTED.format(most=3 * psi, psi=psi)
    sums = {}
    for call in calls:
        sums[call.op] = sums.get(call.op, 0) + volume(call)
    came = f"rank {rank} sent {round(sent)} ({sent / psi:.2f} Ψ): " + ", ".join(
        f"{round(elements)} by {op}" for op, elements in sums.items()
    )
    if reduced >= psi:
        raise report.wrong(
            "all_reduced",
            expected,
            came,
            "an all-reduce brings the whole sum to every rank, and costs 2 Ψ. A rank needs the sum"
            " of its own part only: dist.reduce_scatter, which costs Ψ.",
            step=step,
        )
    begin, middle, _ = report.results[rank]["steps"][step]["times"]
    forward = sum(volume(c) for c in calls if begin <= c.time < middle)
    where = "forward" if forward > psi + SLACK else "backward"
    raise report.wrong(
        "sent_too_much",
        expected,
        f"{came}. Forward sent {forward / psi:.2f} Ψ of it",
        f"a layer is gathered more than once in {where}, or its gradients are sent more than once."
        " A layer that is there need not be gathered: count"
        f" {count(report.sizes.layers, 'layer')} and compare with your calls.",
        step=step,
    )


def calls_of(report, step, rank):
    """The calls with weights or gradients that one rank made in one step."""
    begin, _, end = report.results[rank]["steps"][step]["times"]
    return [
        call
        for call in report.answer.trace.of(rank)
        if begin <= call.time <= end and call.numel and "float" in (call.dtype or "")
    ]


def volume(call):
    """Elements as if all n ranks sent to all: what travels is (n − 1)/n of it, the ring's factor.

    A rank sends n − 1 of n parts in a gather and in a reduce-scatter, and both in an all-reduce.
    """
    n = len(call.members)
    if call.op in ("all_gather", "gather"):
        return call.numel * n
    if call.op == "scatter":
        return call.numel * n
    if call.op == "all_reduce":
        return 2 * call.numel
    if call.op == "send":
        return call.numel * n / (n - 1)
    if call.op == "recv":
        return 0
    return call.numel
