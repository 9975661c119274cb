# mistake: one list for all stages
def gpipe(num_stages, num_microbatches):
    return [("forward", m) for m in range(num_microbatches)] + [
        ("backward", m) for m in range(num_microbatches)
    ]
