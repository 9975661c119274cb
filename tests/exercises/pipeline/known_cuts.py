"""The best cut of layers into stages, and what known mistakes cut instead."""

from fractions import Fraction
from itertools import accumulate, pairwise


def exact(costs):
    """The costs without rounding, so that the order of adding up makes no difference."""
    return [Fraction(cost) for cost in costs]


def best(costs, num_stages):
    """Where the stages of a best cut end.  No stage is empty while there are enough layers."""
    costs = exact(costs)
    layers, filled = len(costs), min(num_stages, len(costs))
    total = [Fraction(0), *accumulate(costs)]
    table: dict[int, tuple[Fraction, tuple[int, ...]]]
    table = {k: (total[k], (k,)) for k in range(1, layers + 1)}
    for stages in range(2, filled + 1):
        table = {
            k: min(
                (max(table[j][0], total[k] - total[j]), (*table[j][1], k))
                for j in range(stages - 1, k)
            )
            for k in range(stages, layers + 1)
        }
    return [*table[layers][1], *[layers] * (num_stages - filled)]


def ranges(ends):
    """Ranges as the drive tells of them: (start, stop)."""
    return list(pairwise([0, *ends]))


def largest(costs, cut):
    """The cost of the most expensive stage of a cut."""
    costs = exact(costs)
    return max((sum(costs[first:end]) for first, end in cut), default=Fraction(0))


def as_many_layers(costs, num_stages):
    """Stages with equal numbers of layers; the first ones get what is left over."""
    share, rest = divmod(len(costs), num_stages)
    return list(accumulate(share + (stage < rest) for stage in range(num_stages)))


def as_many_layers_rest_last(costs, num_stages):
    share = len(costs) // num_stages
    return [*(share * (stage + 1) for stage in range(num_stages - 1)), len(costs)]


def in_chunks(costs, num_stages):
    """As ``torch.chunk`` cuts: rounded up, and the last stage gets what is left."""
    share = -(-len(costs) // num_stages)
    return [min(share * (stage + 1), len(costs)) for stage in range(num_stages)]


def until_the_mean(costs, num_stages, *, overflow):
    """A stage takes layers until it has its equal share of the whole cost; the last takes all."""
    costs = exact(costs)
    mean, ends, held = sum(costs) / num_stages, [], Fraction(0)
    for layer, cost in enumerate(costs):
        full = held >= mean if overflow else held + cost > mean
        if full and held and len(ends) < num_stages - 1:
            ends.append(layer)
            held = Fraction(0)
        held += cost
    return [*ends, *[len(costs)] * (num_stages - len(ends))]


def at_equal_shares(costs, num_stages):
    """Cut where the cost so far passes 1/n, 2/n, ... of the whole."""
    total = list(accumulate(exact(costs)))
    ends = [
        next(k for k, value in enumerate(total, 1) if value * num_stages >= total[-1] * stage)
        for stage in range(1, num_stages)
    ]
    return [*ends, len(costs)]


# By mistake (its first word goes into the message's id): the ends of the stages that it gives.
KNOWN = {
    "equal_layers": as_many_layers,
    "equal_layers, the rest last": as_many_layers_rest_last,
    "equal_layers, rounded up": in_chunks,
    "greedy": lambda costs, stages: until_the_mean(costs, stages, overflow=False),
    "greedy, over the share": lambda costs, stages: until_the_mean(costs, stages, overflow=True),
    "greedy, at equal shares": at_equal_shares,
}
USUALLY = {
    "equal_layers": "the stages have equal numbers of layers. What shall be equal is their cost.",
    "greedy": "a stage is closed when it has its equal share of the whole cost, and what is left"
    " goes to the last one. That looks at one stage after the other: compare all places of each"
    " cut.",
}
