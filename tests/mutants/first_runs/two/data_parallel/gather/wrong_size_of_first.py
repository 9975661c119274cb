# wrong: row offsets from the size of the first output, right only if no later one but the last differs
from collections.abc import Sequence

import torch
from torch import Tensor


def gather(outputs: Sequence[Tensor], device: torch.device) -> Tensor:
    size = len(outputs[0])
    rows = sum(len(output) for output in outputs)
    result = outputs[0].new_zeros((rows, *outputs[0].shape[1:]), device=device)
    for i, output in enumerate(outputs):
        result[i * size : i * size + len(output)] = output.to(device)
    return result
