# mistake: makes the differences from the mean smallest, not the largest cost
from itertools import combinations


def balance(costs, num_stages):
    """Cut where the stages differ least from their mean."""
    n = len(costs)
    full = min(n, num_stages)
    mean = sum(costs) / num_stages
    best = None
    for cuts in combinations(range(1, n), full - 1):
        ends = [0, *cuts, n]
        off = sum((sum(costs[a:b]) - mean) ** 2 for a, b in zip(ends, ends[1:]))
        if best is None or off < best[0]:
            best = off, ends
    ends = best[1]
    return [range(a, b) for a, b in zip(ends, ends[1:])] + [range(n, n)] * (num_stages - full)
