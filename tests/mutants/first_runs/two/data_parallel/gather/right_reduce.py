# right: fold the outputs into one tensor, two at a time
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor


def gather(outputs: Sequence[Tensor], device: torch.device) -> Tensor:
    def append(whole: Tensor, output: Tensor) -> Tensor:
        return torch.concatenate((whole, output.to(device)))

    head, *tail = outputs
    return reduce(append, tail, head.to(device))
