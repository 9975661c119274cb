# right: allocate every chunk on its GPU first, then write the rows in place
from collections.abc import Sequence
from math import ceil

import torch
from torch import Tensor


def split(batch: Tensor, devices: Sequence[torch.device]) -> list[Tensor]:
    rows, *rest = batch.size()
    size = ceil(rows / len(devices))
    chunks = []
    start = 0
    for device in devices:
        count = min(size, rows - start)
        if count <= 0:
            break
        chunk = torch.empty((count, *rest), dtype=batch.dtype, device=device)
        chunk.copy_(batch.narrow(0, start, count))
        chunks.append(chunk)
        start += count
    return chunks
