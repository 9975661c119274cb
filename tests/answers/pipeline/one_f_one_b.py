"""Answers to ``one_f_one_b`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)


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


# %% three_parts: pass


def one_f_one_b(num_stages, num_microbatches):
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


# %% simulated: pass


def one_f_one_b(num_stages, num_microbatches):
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


# %% six_simulated: pass


# style: plays the clock
def one_f_one_b(num_stages, num_microbatches):
    """Play the clock: backward if one is possible, else forward if the limit allows it."""
    rows = [[] for _ in range(num_stages)]
    f, b = [0] * num_stages, [0] * num_stages
    while min(b) < num_microbatches:
        f0, b0 = list(f), list(b)
        for s in range(num_stages):
            last = s == num_stages - 1
            can_back = b0[s] < (f0[s] if last else b0[s + 1])
            can_forward = f0[s] < num_microbatches and (s == 0 or f0[s - 1] > f0[s])
            if can_back:
                rows[s].append(("backward", b[s]))
                b[s] += 1
            elif can_forward and f0[s] - b0[s] < num_stages - s:
                rows[s].append(("forward", f[s]))
                f[s] += 1
    return rows


# %% six_warmup: pass


# style: warm-up, turns, rest
def one_f_one_b(num_stages, num_microbatches):
    table = []
    for s in range(num_stages):
        warm = min(num_stages - s - 1, num_microbatches)
        row = [("forward", m) for m in range(warm)]
        for m in range(num_microbatches - warm):
            row += [("forward", warm + m), ("backward", m)]
        row += [("backward", m) for m in range(num_microbatches - warm, num_microbatches)]
        table.append(row)
    return table


# %% first_stage_like_the_last: wrong wrong_values


def one_f_one_b(num_stages, num_microbatches):
    ends = (0, num_stages - 1)
    return with_ahead(num_stages, num_microbatches, lambda s: 0 if s in ends else 1)


# %% no_return: wrong returned_nothing


def one_f_one_b(num_stages, num_microbatches):
    with_ahead(num_stages, num_microbatches, lambda s: num_stages - s - 1)


# %% last_stage_left_out: wrong wrong_count


def one_f_one_b(num_stages, num_microbatches):
    return with_ahead(num_stages, num_microbatches, lambda s: num_stages - s - 1)[:-1]
