# wrong: the new chunks have the default dtype, so integers and float64 become float32
from collections.abc import Sequence

import torch
from torch import Tensor


def split(batch: Tensor, devices: Sequence[torch.device]) -> list[Tensor]:
    chunks = []
    for piece, device in zip(batch.chunk(len(devices)), devices):
        chunk = torch.empty(piece.shape, device=device)
        chunk.copy_(piece)
        chunks.append(chunk)
    return chunks
