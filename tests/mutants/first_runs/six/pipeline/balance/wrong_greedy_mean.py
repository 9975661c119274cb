# mistake: fills each stage up to its share of the sum
def balance(costs, num_stages):
    """Fill each stage until it has its share of the sum."""
    target = sum(costs) / num_stages
    stages, start, now = [], 0, 0
    for i, cost in enumerate(costs):
        now += cost
        if now >= target and len(stages) < num_stages - 1:
            stages.append(range(start, i + 1))
            start, now = i + 1, 0
    stages.append(range(start, len(costs)))
    while len(stages) < num_stages:
        stages.append(range(len(costs), len(costs)))
    return stages
