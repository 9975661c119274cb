# mistake: fails where there are fewer layers than stages
from itertools import combinations


def balance(costs, num_stages):
    n = len(costs)
    best = None
    for cuts in combinations(range(1, n), num_stages - 1):
        ends = [0, *cuts, n]
        worst = max(sum(costs[a:b]) for a, b in zip(ends, ends[1:]))
        if best is None or worst < best[0]:
            best = worst, ends
    ends = best[1]
    return [range(a, b) for a, b in zip(ends, ends[1:])]
