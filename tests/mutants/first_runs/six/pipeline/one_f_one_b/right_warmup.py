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
