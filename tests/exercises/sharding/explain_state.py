"""Whether each rank keeps optimizer state for its share only, and what is wrong if it does not.

These mistakes belong to both ``sharding.Zero1Optimizer`` and ``sharding.Zero2Optimizer``.
"""

from multigpu.checking.verdicts import listed

HOLDS_ALL = (
    "the inner optimizer holds all parameters. Give it those that this rank owns and no others."
)


def looks_of(report, rank):
    """Every look at the state of one rank: step (None: the constructor), when, and how much."""
    result = report.results[rank]
    for step, notes in [(None, result["start"]), *enumerate(result["steps"])]:
        for when, held, shown in notes["held"]:
            yield step, when, held, shown


def examine_state(report):
    """State for more elements than a share, at any time on any rank, is refused."""
    looks = [list(looks_of(report, rank)) for rank in range(report.n)]
    peaks = [max((held for _, _, held, _ in own), default=0) for own in looks]
    rank = max(range(report.n), key=lambda r: peaks[r])
    if peaks[rank] <= report.bound:
        return
    step, when, held, shown = next(look for look in looks[rank] if look[2] == peaks[rank])
    lasting = [look[2] for look in looks[rank] if look[1] == "end"]
    expected = f"each rank holds state for {report.at_most}"
    came = f"the ranks held state for {listed(peaks)} elements (ranks 0 to {report.n - 1})"
    if shown <= report.bound:
        raise report.wrong(
            "state_is_a_view",
            expected,
            f"{came}: on rank {rank} the state's tensors have {shown} elements, but they are views"
            f" of storages with {held}",
            "a slice of a tensor keeps all of the tensor alive. Make the state for the part alone,"
            " or clone() the part.",
            step=step,
        )
    if max(lasting, default=0) <= report.bound:
        raise report.wrong(
            "state_for_a_while",
            expected + ", at any time",
            f"{came}, {MOMENTS[when]}; at the end of the step rank {rank} had no more than"
            f" {max(lasting, default=0)}",
            "state was made for everything and then thrown away. Memory must hold the most there"
            " ever is. " + HOLDS_ALL,
            step=step,
        )
    if max(peaks) >= report.total and min(peaks) == 0:
        raise report.wrong(
            "state_on_one_rank",
            expected,
            came,
            "one rank owns everything. Then it needs as much memory as without sharding, and the"
            " others wait for it: share the elements out.",
            step=step,
        )
    if min(peaks) >= report.total:
        raise report.wrong(
            "state_not_sharded",
            expected,
            f"{came}, {MOMENTS[when]}. The weights are right, but nothing is sharded",
            HOLDS_ALL + by_constructor(when),
            step=step,
        )
    raise report.wrong(
        "state_unbalanced",
        expected,
        came,
        "shares differ too much. Every n-th parameter, or the same number of parameters for each"
        " rank, can give one of them all the large ones: give each to the rank that has the fewest"
        " elements so far, the largest ones first.",
        step=step,
    )


def by_constructor(when):
    """Adagrad does not wait for a gradient."""
    return " Adagrad makes its state in its constructor." if when == "made" else ""


MOMENTS = {
    "made": "when the inner optimizer had been made",
    "before": "before the inner step",
    "after": "after the inner step",
    "end": "at the end of the step",
}
