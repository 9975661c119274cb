"""Answers to ``gpipe``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

from harness import right, wrong


@wrong("gpipe.one_at_a_time")
def one_microbatch_after_the_other(num_stages, num_microbatches):
    row = []
    for m in range(num_microbatches):
        row += [("forward", m), ("backward", m)]
    return [list(row) for _ in range(num_stages)]


@wrong("gpipe.backward_too_early")
def that_is_one_f_one_b(num_stages, num_microbatches):
    table = []
    for s in range(num_stages):
        ahead = min(num_stages - s - 1, num_microbatches)
        row = [("forward", m) for m in range(ahead)]
        for m in range(num_microbatches - ahead):
            row += [("forward", m + ahead), ("backward", m)]
        row += [("backward", m) for m in range(num_microbatches - ahead, num_microbatches)]
        table.append(row)
    return table


@wrong("gpipe.wrong_number_of_stages")
def by_microbatch(num_stages, num_microbatches):
    return [
        [("forward", s) for s in range(num_stages)] + [("backward", s) for s in range(num_stages)]
        for _ in range(num_microbatches)
    ]


@wrong("gpipe.no_such_microbatch")
def counts_from_one(num_stages, num_microbatches):
    ms = range(1, num_microbatches + 1)
    return [[("forward", m) for m in ms] + [("backward", m) for m in ms] for _ in range(num_stages)]


@wrong("gpipe.action_missing")
def stages_for_microbatches(num_stages, num_microbatches):
    ms = range(num_stages)
    return [[("forward", m) for m in ms] + [("backward", m) for m in ms] for _ in range(num_stages)]


@wrong("gpipe.action_missing")
def last_backward_lost(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [
        [("forward", m) for m in ms] + [("backward", m) for m in reversed(ms) if m]
        for _ in range(num_stages)
    ]


@wrong("gpipe.action_missing")
def forwards_only(num_stages, num_microbatches):
    return [[("forward", m) for m in range(num_microbatches)] for _ in range(num_stages)]


@wrong("gpipe.action_twice")
def last_stage_forward_again(num_stages, num_microbatches):
    ms = range(num_microbatches)
    table = [
        [("forward", m) for m in ms] + [("backward", m) for m in ms] for _ in range(num_stages)
    ]
    table[-1].append(("backward", 0))
    return table


@wrong("gpipe.bubble_too_large")
def orders_do_not_fit(num_stages, num_microbatches):
    """Every other stage goes back in the other direction."""
    table = []
    for s in range(num_stages):
        row = [("forward", m) for m in range(num_microbatches)]
        back = [("backward", m) for m in range(num_microbatches)]
        table.append(row + (back[::-1] if s % 2 else back))
    return table


@wrong("gpipe.backward_before_forward")
def backwards_first(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [[("backward", m) for m in ms] + [("forward", m) for m in ms] for _ in range(num_stages)]


@wrong("gpipe.not_an_action")
def letters(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [[("F", m) for m in ms] + [("B", m) for m in ms] for _ in range(num_stages)]


@wrong("gpipe.not_an_action")
def lists_for_pairs(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [[["forward", m] for m in ms] + [["backward", m] for m in ms] for _ in range(num_stages)]


@wrong("gpipe.not_an_action")
def texts(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [[f"forward {m}" for m in ms] + [f"backward {m}" for m in ms] for _ in range(num_stages)]


@wrong("gpipe.not_an_action")
def with_pauses(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [
        [None] * s + [("forward", m) for m in ms] + [("backward", m) for m in ms]
        for s in range(num_stages)
    ]


@wrong("gpipe.not_a_table")
def one_list(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [("forward", m) for m in ms] + [("backward", m) for m in ms]


@wrong("gpipe.not_a_table")
def a_dict(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return {
        s: [("forward", m) for m in ms] + [("backward", m) for m in ms] for s in range(num_stages)
    }


@wrong("gpipe.returned_nothing")
def no_return(num_stages, num_microbatches):
    table = [[("forward", m) for m in range(num_microbatches)] for _ in range(num_stages)]
    for row in table:
        row += [("backward", m) for m in range(num_microbatches)]


@right
def back_from_the_last(num_stages, num_microbatches):
    ms = range(num_microbatches)
    row = [("forward", m) for m in ms] + [("backward", m) for m in ms[::-1]]
    return [row] * num_stages


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


@right
def tuples_all_over(num_stages, num_microbatches):
    kinds = ("forward", "backward")
    return [
        [(kind, m) for kind in kinds for m in range(num_microbatches)] for _ in range(num_stages)
    ]
