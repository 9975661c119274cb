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
