# mistake: each micro-batch forward and back before the next one
def gpipe(num_stages, num_microbatches):
    row = []
    for m in range(num_microbatches):
        row += [("forward", m), ("backward", m)]
    return [row] * num_stages
