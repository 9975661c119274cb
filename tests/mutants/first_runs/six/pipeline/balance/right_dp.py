# style: dynamic programming
from collections.abc import Sequence
from itertools import accumulate


def balance(costs: Sequence[float], num_stages: int) -> list[range]:
    n = len(costs)
    pre = [0, *accumulate(costs)]
    full = min(n, num_stages)
    INF = float("inf")
    best = [[INF] * (n + 1) for _ in range(full + 1)]
    back = [[0] * (n + 1) for _ in range(full + 1)]
    best[0][0] = 0
    for k in range(1, full + 1):
        for j in range(k, n + 1):
            for i in range(k - 1, j):
                worst = max(best[k - 1][i], pre[j] - pre[i])
                if worst < best[k][j]:
                    best[k][j], back[k][j] = worst, i
    cuts, j = [n], n
    for k in range(full, 0, -1):
        j = back[k][j]
        cuts.append(j)
    cuts.reverse()
    ranges = [range(a, b) for a, b in zip(cuts, cuts[1:])]
    return ranges + [range(n, n)] * (num_stages - full)
