# mistake: counts micro-batches from one
def gpipe(num_stages, num_microbatches):
    f = [("forward", m) for m in range(1, num_microbatches + 1)]
    b = [("backward", m) for m in range(1, num_microbatches + 1)]
    return [f + b for _ in range(num_stages)]
