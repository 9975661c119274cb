# mistake: a list for each tick of a clock, not for each stage
def gpipe(num_stages, num_microbatches):
    """By clock ticks rather than by stage."""
    ticks = []
    for t in range(num_microbatches + num_stages - 1):
        ticks.append([("forward", t - s) for s in range(num_stages) if 0 <= t - s < num_microbatches])
    for t in range(num_microbatches + num_stages - 1):
        ticks.append([("backward", t - s) for s in range(num_stages) if 0 <= t - s < num_microbatches])
    return ticks
