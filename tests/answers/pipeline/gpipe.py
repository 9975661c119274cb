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


# %% six_plain: pass


# style: in order, forward and back
def gpipe(num_stages, num_microbatches):
    f = [("forward", m) for m in range(num_microbatches)]
    b = [("backward", m) for m in range(num_microbatches)]
    return [f + b for _ in range(num_stages)]


# %% six_reversed: pass


# style: back from the last micro-batch
def gpipe(num_stages, num_microbatches):
    table = []
    for _ in range(num_stages):
        row = []
        for m in range(num_microbatches):
            row.append(("forward", m))
        for m in reversed(range(num_microbatches)):
            row.append(("backward", m))
        table.append(row)
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


# %% no_return: wrong returned_nothing


def gpipe(num_stages, num_microbatches):
    table = [[("forward", m) for m in range(num_microbatches)] for _ in range(num_stages)]
    for row in table:
        row += [("backward", m) for m in range(num_microbatches)]


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
