# wrong: chunk i goes to cuda:i, whatever the order in devices is
from collections.abc import Sequence

import torch
from torch import Tensor


def split(batch: Tensor, devices: Sequence[torch.device]) -> list[Tensor]:
    pieces = batch.chunk(len(devices))
    return [piece.to(torch.device("cuda", i)) for i, piece in enumerate(pieces)]
