# wrong: a dict keeps the order of insertion, so the outputs come in the order they were ready
import threading
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def parallel_apply(replicas: Sequence[nn.Module], chunks: Sequence[Tensor]) -> list[Tensor]:
    mode = torch.is_grad_enabled()
    lock = threading.Lock()
    results, errors = {}, {}

    def work(i: int, replica: nn.Module, chunk: Tensor) -> None:
        try:
            with torch.set_grad_enabled(mode):
                output = replica(chunk)
            with lock:
                results[i] = output
        except Exception as error:
            with lock:
                errors[i] = error

    threads = [
        threading.Thread(target=work, args=(i, replica, chunk))
        for i, (replica, chunk) in enumerate(zip(replicas, chunks))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, error in errors.items():
        raise RuntimeError(f"replica {i}: {error}") from error
    return list(results.values())
