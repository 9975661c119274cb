# style: in order, forward and back
def gpipe(num_stages, num_microbatches):
    f = [("forward", m) for m in range(num_microbatches)]
    b = [("backward", m) for m in range(num_microbatches)]
    return [f + b for _ in range(num_stages)]
