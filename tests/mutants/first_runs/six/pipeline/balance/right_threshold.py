# style: the smallest sum of neighbours that fits as a limit, filled greedily
from collections.abc import Sequence


def balance(costs: Sequence[float], num_stages: int) -> list[range]:
    """Try all sums of neighbours as the limit, smallest first; fill greedily."""
    n = len(costs)
    limits = sorted({sum(costs[i:j]) for i in range(n) for j in range(i + 1, n + 1)})

    def fill(limit):
        parts, start = [], 0
        while start < n:
            end = start
            while end < n and sum(costs[start : end + 1]) <= limit:
                end += 1
            if end == start:
                return None
            parts.append(range(start, end))
            start = end
        return parts

    for limit in limits:
        parts = fill(limit)
        if parts is not None and len(parts) <= num_stages:
            break
    # split parts with several layers until there are enough stages
    while len(parts) < min(n, num_stages):
        i = next(i for i, p in enumerate(parts) if len(p) > 1)
        p = parts[i]
        parts[i : i + 1] = [range(p.start, p.start + 1), range(p.start + 1, p.stop)]
    return parts + [range(n, n)] * (num_stages - len(parts))
