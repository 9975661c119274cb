# mistake: more forwards first than there are micro-batches
def one_f_one_b(num_stages, num_microbatches):
    table = []
    for s in range(num_stages):
        warm = num_stages - s - 1
        row = [("forward", m) for m in range(warm)]
        for m in range(num_microbatches - warm):
            row += [("forward", warm + m), ("backward", m)]
        row += [("backward", m) for m in range(num_microbatches - warm, num_microbatches)]
        table.append(row)
    return table
