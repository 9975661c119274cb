# right: own ceil arithmetic, slices in a while loop
import math


def split(batch, devices):
    rows = batch.shape[0]
    size = math.ceil(rows / len(devices))
    result = []
    start = 0
    while start < rows:
        stop = min(start + size, rows)
        result.append(batch[start:stop].to(devices[len(result)]))
        start = stop
    return result
