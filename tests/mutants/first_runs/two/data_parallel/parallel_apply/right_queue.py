# right: bare threads that report through a queue; the calling thread takes chunk 0; raise ... from
import threading
from collections.abc import Sequence
from queue import SimpleQueue

import torch
from torch import Tensor, nn


def parallel_apply(replicas: Sequence[nn.Module], chunks: Sequence[Tensor]) -> list[Tensor]:
    grad = torch.is_grad_enabled()
    done: SimpleQueue = SimpleQueue()

    def work(i: int) -> None:
        try:
            with torch.set_grad_enabled(grad):
                done.put((i, replicas[i](chunks[i]), None))
        except BaseException as error:
            done.put((i, None, error))

    for i in range(1, len(chunks)):
        threading.Thread(target=work, args=(i,), daemon=True).start()
    if len(chunks):
        work(0)

    outputs: list = [None] * len(chunks)
    errors = {}
    for _ in chunks:
        i, output, error = done.get()
        outputs[i] = output
        if error is not None:
            errors[i] = error
    if errors:
        i = min(errors)
        raise RuntimeError(f"replica {i} failed: {errors[i]!r}") from errors[i]
    return outputs
