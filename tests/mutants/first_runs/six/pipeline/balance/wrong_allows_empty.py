# mistake: bisects the limit and fills greedily; stages at the end may stay empty
def balance(costs, num_stages):
    """Bisect the limit as a float, fill greedily, pad with empty stages."""
    n = len(costs)

    def fill(limit):
        stages, start, now = [], 0, 0
        for i, c in enumerate(costs):
            if now + c > limit:
                stages.append(range(start, i))
                start, now = i, 0
            now += c
        return stages + [range(start, n)]

    low, high = max(costs), sum(costs)
    for _ in range(100):
        mid = (low + high) / 2
        if len(fill(mid)) <= num_stages:
            high = mid
        else:
            low = mid
    stages = fill(high)
    return stages + [range(n, n)] * (num_stages - len(stages))
