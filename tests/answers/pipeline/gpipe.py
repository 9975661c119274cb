"""Answers to ``gpipe`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)


# %% from_slots: pass
def gpipe(num_stages, num_microbatches):
    """As drawn: time from left to right."""
    table = [[] for _ in range(num_stages)]
    slots = num_microbatches + num_stages - 1
    for t in range(slots):
        for s in range(num_stages):
            if 0 <= t - s < num_microbatches:
                table[s].append(("forward", t - s))
    for t in range(slots):
        for s in range(num_stages):
            m = t - (num_stages - 1 - s)
            if 0 <= m < num_microbatches:
                table[s].append(("backward", m))
    return table


# %% last_backward_lost: wrong wrong_values
def gpipe(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [
        [("forward", m) for m in ms] + [("backward", m) for m in reversed(ms) if m]
        for _ in range(num_stages)
    ]


# %% letters: wrong wrong_type
def gpipe(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [[("F", m) for m in ms] + [("B", m) for m in ms] for _ in range(num_stages)]


# %% six_by_time: wrong wrong_count
# mistake: a list for each tick of a clock, not for each stage
def gpipe(num_stages, num_microbatches):
    """By clock ticks rather than by stage."""
    ticks = []
    for t in range(num_microbatches + num_stages - 1):
        ticks.append(
            [("forward", t - s) for s in range(num_stages) if 0 <= t - s < num_microbatches]
        )
    for t in range(num_microbatches + num_stages - 1):
        ticks.append(
            [("backward", t - s) for s in range(num_stages) if 0 <= t - s < num_microbatches]
        )
    return ticks


# %% counts_from_one: wrong wrong_values
def gpipe(num_stages, num_microbatches):
    ms = range(1, num_microbatches + 1)
    return [[("forward", m) for m in ms] + [("backward", m) for m in ms] for _ in range(num_stages)]
