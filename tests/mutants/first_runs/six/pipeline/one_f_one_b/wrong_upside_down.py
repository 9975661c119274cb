# mistake: the warm-up grows with the number of the stage
def one_f_one_b(num_stages, num_microbatches):
    table = []
    for s in range(num_stages):
        warm = min(s, num_microbatches)
        row = [("forward", m) for m in range(warm)]
        for m in range(num_microbatches - warm):
            row += [("forward", warm + m), ("backward", m)]
        row += [("backward", m) for m in range(num_microbatches - warm, num_microbatches)]
        table.append(row)
    return table
