# mistake: the last stage goes back in another order than the others
def gpipe(num_stages, num_microbatches):
    """The last stage goes back from its last micro-batch, the others in order."""
    f = [("forward", m) for m in range(num_microbatches)]
    b = [("backward", m) for m in range(num_microbatches)]
    return [f + b for _ in range(num_stages - 1)] + [f + b[::-1]]
