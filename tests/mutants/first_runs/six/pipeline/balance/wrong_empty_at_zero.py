# mistake: the empty stages are range(0), not where the last layer ends
from itertools import combinations


def balance(costs, num_stages):
    n = len(costs)
    full = min(n, num_stages)
    best = None
    for cuts in combinations(range(1, n), full - 1):
        ends = [0, *cuts, n]
        worst = max(sum(costs[a:b]) for a, b in zip(ends, ends[1:]))
        if best is None or worst < best[0]:
            best = worst, ends
    ends = best[1]
    return [range(a, b) for a, b in zip(ends, ends[1:])] + [range(0) for _ in range(num_stages - full)]
