# style: back from the last micro-batch
def gpipe(num_stages, num_microbatches):
    table = []
    for _ in range(num_stages):
        row = []
        for m in range(num_microbatches):
            row.append(("forward", m))
        for m in reversed(range(num_microbatches)):
            row.append(("backward", m))
        table.append(row)
    return table
