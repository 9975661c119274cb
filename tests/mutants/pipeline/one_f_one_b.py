"""Answers to ``one_f_one_b``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

from harness import right, wrong


def with_ahead(num_stages, num_microbatches, ahead_of):
    table = []
    for s in range(num_stages):
        ahead = max(0, min(ahead_of(s), num_microbatches))
        row = [("forward", m) for m in range(ahead)]
        for m in range(num_microbatches - ahead):
            row += [("forward", m + ahead), ("backward", m)]
        row += [("backward", m) for m in range(num_microbatches - ahead, num_microbatches)]
        table.append(row)
    return table


@wrong("one_f_one_b.all_forwards_first")
def that_is_gpipe(num_stages, num_microbatches):
    ms = range(num_microbatches)
    return [[("forward", m) for m in ms] + [("backward", m) for m in ms] for _ in range(num_stages)]


@wrong("one_f_one_b.one_at_a_time")
def one_microbatch_after_the_other(num_stages, num_microbatches):
    return with_ahead(num_stages, num_microbatches, lambda s: 0)


@wrong("one_f_one_b.too_many_in_flight")
def one_forward_too_many(num_stages, num_microbatches):
    return with_ahead(num_stages, num_microbatches, lambda s: num_stages - s)


@wrong("one_f_one_b.too_many_in_flight")
def as_many_on_every_stage(num_stages, num_microbatches):
    return with_ahead(num_stages, num_microbatches, lambda s: num_stages - 1)


@wrong("one_f_one_b.bubble_too_large")
def one_forward_too_few(num_stages, num_microbatches):
    return with_ahead(num_stages, num_microbatches, lambda s: num_stages - s - 2)


@wrong("one_f_one_b.too_many_in_flight")
def ahead_by_stage_number(num_stages, num_microbatches):
    return with_ahead(num_stages, num_microbatches, lambda s: s)


@wrong("one_f_one_b.stages_wait_for_each_other")
def first_stage_like_the_last(num_stages, num_microbatches):
    ends = (0, num_stages - 1)
    return with_ahead(num_stages, num_microbatches, lambda s: 0 if s in ends else 1)


@wrong("one_f_one_b.action_missing")
def forgets_the_last_backwards(num_stages, num_microbatches):
    table = []
    for s in range(num_stages):
        ahead = min(num_stages - s - 1, num_microbatches)
        row = [("forward", m) for m in range(ahead)]
        for m in range(num_microbatches - ahead):
            row += [("forward", m + ahead), ("backward", m)]
        table.append(row)
    return table


@wrong("one_f_one_b.action_twice")
def begins_the_turns_at_zero(num_stages, num_microbatches):
    table = []
    for s in range(num_stages):
        ahead = min(num_stages - s - 1, num_microbatches)
        row = [("forward", m) for m in range(ahead)]
        for m in range(num_microbatches):
            row += [("forward", m), ("backward", m)]
        table.append(row)
    return table


@wrong("one_f_one_b.no_such_microbatch")
def fewer_microbatches_than_stages(num_stages, num_microbatches):
    """Forgets that there may not be enough to go ahead with."""
    table = []
    for s in range(num_stages):
        ahead = num_stages - s - 1
        row = [("forward", m) for m in range(ahead)]
        for m in range(num_microbatches - ahead):
            row += [("forward", m + ahead), ("backward", m)]
        row += [("backward", m) for m in range(max(num_microbatches - ahead, 0), num_microbatches)]
        table.append(row)
    return table


@wrong("one_f_one_b.backward_before_forward")
def backward_of_the_wrong_one(num_stages, num_microbatches):
    table = []
    for s in range(num_stages):
        ahead = min(num_stages - s - 1, num_microbatches)
        row = [("forward", m) for m in range(ahead)]
        for m in range(num_microbatches - ahead):
            row += [("backward", m), ("forward", m + ahead)]
        row += [("backward", m) for m in range(num_microbatches - ahead, num_microbatches)]
        table.append(row)
    return table


@wrong("one_f_one_b.bubble_too_large")
def newest_first(num_stages, num_microbatches):
    """Takes the newest one back, as if the micro-batches were a pile."""
    table = []
    for s in range(num_stages):
        ahead = min(num_stages - s - 1, num_microbatches)
        row = [("forward", m) for m in range(ahead)]
        held = list(range(ahead))
        for m in range(num_microbatches - ahead):
            row.append(("forward", m + ahead))
            held.append(m + ahead)
            row.append(("backward", held.pop(0) if s else held.pop(0)))
        row += [("backward", m) for m in reversed(held)]
        table.append(row)
    return table


@wrong("one_f_one_b.returned_nothing")
def no_return(num_stages, num_microbatches):
    with_ahead(num_stages, num_microbatches, lambda s: num_stages - s - 1)


@wrong("one_f_one_b.wrong_number_of_stages")
def last_stage_left_out(num_stages, num_microbatches):
    return with_ahead(num_stages, num_microbatches, lambda s: num_stages - s - 1)[:-1]


@right
def as_many_as_it_may_hold(num_stages, num_microbatches):
    table = []
    for s in range(num_stages):
        row, back = [], 0
        for m in range(num_microbatches):
            if m - back == num_stages - s:
                row.append(("backward", back))
                back += 1
            row.append(("forward", m))
        row += [("backward", m) for m in range(back, num_microbatches)]
        table.append(row)
    return table


@right
def three_parts(num_stages, num_microbatches):
    table = []
    for s in range(num_stages):
        warm_up = min(num_stages - 1 - s, num_microbatches)
        f = iter(range(num_microbatches))
        b = iter(range(num_microbatches))
        row = [("forward", next(f)) for _ in range(warm_up)]
        for m in f:
            row.append(("forward", m))
            row.append(("backward", next(b)))
        row.extend(("backward", m) for m in b)
        table.append(row)
    return table


@right
def simulated(num_stages, num_microbatches):
    """Every unit of time each stage takes a backward that it can do, else a forward it may do."""
    p, n = num_stages, num_microbatches
    table = [[] for _ in range(p)]
    done = set()
    while any(len(row) < 2 * n for row in table):
        now = set()
        for s in range(p):
            f = sum(kind == "forward" for kind, _ in table[s])
            b = len(table[s]) - f
            if b < f and (s == p - 1 or ("backward", s + 1, b) in done):
                now.add(("backward", s, b))
            elif f < n and f - b < p - s and (s == 0 or ("forward", s - 1, f) in done):
                now.add(("forward", s, f))
        for kind, s, m in now:
            table[s].append((kind, m))
        done |= now
    return table
