# mistake: no forwards before the turns
def one_f_one_b(num_stages, num_microbatches):
    row = []
    for m in range(num_microbatches):
        row += [("forward", m), ("backward", m)]
    return [list(row) for _ in range(num_stages)]
