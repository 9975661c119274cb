"""Answers to ``gpipe``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

from harness import right, wrong


@wrong("gpipe.stages_for_microbatches")
def stages_for_microbatches(num_stages, num_microbatches):
    ms = range(num_stages)
    return [[("forward", m) for m in ms] + [("backward", m) for m in ms] for _ in range(num_stages)]


@wrong("wrong_values")
def last_backward_lost(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [
        [("forward", m) for m in ms] + [("backward", m) for m in reversed(ms) if m]
        for _ in range(num_stages)
    ]


@wrong("wrong_values")
def last_stage_forward_again(num_stages, num_microbatches):
    ms = range(num_microbatches)
    table = [
        [("forward", m) for m in ms] + [("backward", m) for m in ms] for _ in range(num_stages)
    ]
    table[-1].append(("backward", 0))
    return table


@wrong("gpipe.directions_differ")
def orders_do_not_fit(num_stages, num_microbatches):
    """Every other stage goes back in the other direction."""
    table = []
    for s in range(num_stages):
        row = [("forward", m) for m in range(num_microbatches)]
        back = [("backward", m) for m in range(num_microbatches)]
        table.append(row + (back[::-1] if s % 2 else back))
    return table


@wrong("wrong_type")
def letters(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [[("F", m) for m in ms] + [("B", m) for m in ms] for _ in range(num_stages)]


@wrong("wrong_type")
def lists_for_pairs(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [[["forward", m] for m in ms] + [["backward", m] for m in ms] for _ in range(num_stages)]


@wrong("wrong_type")
def texts(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [[f"forward {m}" for m in ms] + [f"backward {m}" for m in ms] for _ in range(num_stages)]


@wrong("wrong_type")
def with_pauses(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [
        [None] * s + [("forward", m) for m in ms] + [("backward", m) for m in ms]
        for s in range(num_stages)
    ]


@wrong("wrong_type")
def one_list(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [("forward", m) for m in ms] + [("backward", m) for m in ms]


@wrong("wrong_type")
def a_dict(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return {
        s: [("forward", m) for m in ms] + [("backward", m) for m in ms] for s in range(num_stages)
    }


@wrong("returned_nothing")
def no_return(num_stages, num_microbatches):
    table = [[("forward", m) for m in range(num_microbatches)] for _ in range(num_stages)]
    for row in table:
        row += [("backward", m) for m in range(num_microbatches)]


@right
def from_slots(num_stages, num_microbatches):
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
