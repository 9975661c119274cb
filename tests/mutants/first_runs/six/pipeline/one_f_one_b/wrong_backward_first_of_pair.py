# mistake: takes the newest micro-batch back first
def one_f_one_b(num_stages, num_microbatches):
    """num_stages - s forwards, then backward of the LAST one, so its activations go first."""
    table = []
    for s in range(num_stages):
        row, flying, nxt = [], [], 0
        while nxt < num_microbatches or flying:
            if nxt < num_microbatches and len(flying) < num_stages - s:
                row.append(("forward", nxt)); flying.append(nxt); nxt += 1
            else:
                row.append(("backward", flying.pop()))
        table.append(row)
    return table
