# mistake: writes pauses down as None
def gpipe(num_stages, num_microbatches):
    """With the bubble written down as None."""
    table = []
    for s in range(num_stages):
        row = [None] * s
        row += [("forward", m) for m in range(num_microbatches)]
        row += [None] * (2 * (num_stages - 1 - s))
        row += [("backward", m) for m in range(num_microbatches)]
        row += [None] * s
        table.append(row)
    return table
