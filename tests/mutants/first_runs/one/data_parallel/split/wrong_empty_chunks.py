# wrong: one slice for every GPU, so a small batch gives empty chunks at the end
def split(batch, devices):
    k = len(devices)
    size = (batch.size(0) + k - 1) // k
    return [batch[i * size : (i + 1) * size].to(devices[i]) for i in range(k)]
