# wrong: the grad mode is asked for inside the new thread, where it is always on
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn


def parallel_apply(replicas: Sequence[nn.Module], chunks: Sequence[Tensor]) -> list[Tensor]:
    def forward(number: int) -> Tensor:
        try:
            with torch.set_grad_enabled(torch.is_grad_enabled()):
                return replicas[number](chunks[number])
        except Exception as error:
            error.add_note(f"replica {number}")
            raise

    with ThreadPoolExecutor(max_workers=len(chunks)) as pool:
        return list(pool.map(forward, range(len(chunks))))
