# wrong: the chunk of the calling thread is not wrapped, so an error there does not name replica 0
import threading
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def parallel_apply(replicas: Sequence[nn.Module], chunks: Sequence[Tensor]) -> list[Tensor]:
    mode = torch.is_grad_enabled()
    outputs: list = [None] * len(chunks)
    errors = {}

    def work(i: int) -> None:
        try:
            with torch.set_grad_enabled(mode):
                outputs[i] = replicas[i](chunks[i])
        except Exception as error:
            errors[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, len(chunks))]
    for thread in threads:
        thread.start()
    try:
        outputs[0] = replicas[0](chunks[0])
    finally:
        for thread in threads:
            thread.join()
    for i, error in sorted(errors.items()):
        error.add_note(f"replica {i}")
        raise error
    return outputs
