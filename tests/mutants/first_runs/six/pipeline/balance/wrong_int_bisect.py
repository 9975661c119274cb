# mistake: bisects over whole numbers, but costs may be fractions
def balance(costs, num_stages):
    """Bisection over whole numbers."""
    n = len(costs)

    def fill(limit):
        stages, start, now = [], 0, 0
        for i, c in enumerate(costs):
            left_layers, left_stages = n - i, num_stages - len(stages)
            if i > start and (now + c > limit or left_layers < left_stages):
                stages.append(range(start, i))
                start, now = i, 0
            now += c
        return stages + [range(start, n)]

    low, high = int(max(costs)), int(sum(costs)) + 1
    while low < high:
        mid = (low + high) // 2
        if len(fill(mid)) <= num_stages:
            high = mid
        else:
            low = mid + 1
    stages = fill(high)
    return stages + [range(n, n)] * (num_stages - len(stages))
