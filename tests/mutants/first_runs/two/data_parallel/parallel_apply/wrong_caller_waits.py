# wrong: the calling thread joins the others before it begins with its own chunk
import threading
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def parallel_apply(replicas: Sequence[nn.Module], chunks: Sequence[Tensor]) -> list[Tensor]:
    mode = torch.is_grad_enabled()
    outputs: list = [None] * len(chunks)
    errors: list = [None] * len(chunks)

    def work(i: int) -> None:
        try:
            with torch.set_grad_enabled(mode):
                outputs[i] = replicas[i](chunks[i])
        except Exception as error:
            errors[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, len(chunks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    work(0)
    for i, error in enumerate(errors):
        if error is not None:
            raise RuntimeError(f"error in replica {i}") from error
    return outputs
