"""Answers to ``one_f_one_b`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

from exercises.pipeline.one_f_one_b import table_with


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


# %% first_stage_like_the_last: wrong wrong_values
def one_f_one_b(num_stages, num_microbatches):
    ends = (0, num_stages - 1)
    return table_with(num_stages, num_microbatches, lambda s: 0 if s in ends else 1)


# %% last_stage_left_out: wrong wrong_count
def one_f_one_b(num_stages, num_microbatches):
    return table_with(num_stages, num_microbatches, lambda s: num_stages - s - 1)[:-1]
