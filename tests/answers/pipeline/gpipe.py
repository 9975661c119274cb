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


# %% last_stage_forward_again: wrong wrong_values


def gpipe(num_stages, num_microbatches):
    ms = range(num_microbatches)
    table = [
        [("forward", m) for m in ms] + [("backward", m) for m in ms] for _ in range(num_stages)
    ]
    table[-1].append(("backward", 0))
    return table


# %% letters: wrong wrong_type


def gpipe(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [[("F", m) for m in ms] + [("B", m) for m in ms] for _ in range(num_stages)]


# %% lists_for_pairs: wrong wrong_type


def gpipe(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [[["forward", m] for m in ms] + [["backward", m] for m in ms] for _ in range(num_stages)]


# %% texts: wrong wrong_type


def gpipe(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [[f"forward {m}" for m in ms] + [f"backward {m}" for m in ms] for _ in range(num_stages)]


# %% with_pauses: wrong wrong_type


def gpipe(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [
        [None] * s + [("forward", m) for m in ms] + [("backward", m) for m in ms]
        for s in range(num_stages)
    ]


# %% one_list: wrong wrong_type


def gpipe(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [("forward", m) for m in ms] + [("backward", m) for m in ms]


# %% a_dict: wrong wrong_type


def gpipe(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return {
        s: [("forward", m) for m in ms] + [("backward", m) for m in ms] for s in range(num_stages)
    }


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


# %% six_mixed_orders: wrong wrong_values


# mistake: the last stage goes back in another order than the others
def gpipe(num_stages, num_microbatches):
    """The last stage goes back from its last micro-batch, the others in order."""
    f = [("forward", m) for m in range(num_microbatches)]
    b = [("backward", m) for m in range(num_microbatches)]
    return [f + b for _ in range(num_stages - 1)] + [f + b[::-1]]


# %% six_one_row: wrong wrong_type


# mistake: one list for all stages
def gpipe(num_stages, num_microbatches):
    return [("forward", m) for m in range(num_microbatches)] + [
        ("backward", m) for m in range(num_microbatches)
    ]


# %% six_waits_none: wrong wrong_type


# mistake: writes pauses down as None
def gpipe(num_stages, num_microbatches):
    """With the bubble written down as None."""
    table = []
    for s in range(num_stages):
        row = [None] * s
        row += [("forward", m) for m in range(num_microbatches)]
        row += [None] * (2 * (num_stages - 1 - s))
        row += [("backward", m) for m in range(num_microbatches)]
        row += [None] * s
        table.append(row)
    return table
