# right: ThreadPoolExecutor with one worker per chunk, futures in order, a note on the error
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn


def parallel_apply(replicas: Sequence[nn.Module], chunks: Sequence[Tensor]) -> list[Tensor]:
    mode = torch.is_grad_enabled()

    def forward(replica: nn.Module, chunk: Tensor) -> Tensor:
        with torch.set_grad_enabled(mode):
            return replica(chunk)

    with ThreadPoolExecutor(max_workers=max(1, len(chunks))) as pool:
        futures = [pool.submit(forward, *pair) for pair in zip(replicas, chunks)]
    outputs = []
    for number, future in enumerate(futures):
        error = future.exception()
        if error is not None:
            error.add_note(f"This came from replica {number}.")
            raise error
        outputs.append(future.result())
    return outputs
