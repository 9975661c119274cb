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


@wrong("wrong_values")
def first_stage_like_the_last(num_stages, num_microbatches):
    ends = (0, num_stages - 1)
    return with_ahead(num_stages, num_microbatches, lambda s: 0 if s in ends else 1)


@wrong("one_f_one_b.backward_first_in_a_turn")
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


@wrong("wrong_values")
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


@wrong("returned_nothing")
def no_return(num_stages, num_microbatches):
    with_ahead(num_stages, num_microbatches, lambda s: num_stages - s - 1)


@wrong("wrong_count")
def last_stage_left_out(num_stages, num_microbatches):
    return with_ahead(num_stages, num_microbatches, lambda s: num_stages - s - 1)[:-1]


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
