# right: a Thread subclass that keeps its output or its error and hands it out in join
from collections.abc import Sequence
from threading import Thread

import torch
from torch import Tensor, nn


class _Forward(Thread):
    def __init__(self, number: int, replica: nn.Module, chunk: Tensor):
        super().__init__(name=f"replica {number}")
        self.replica, self.chunk = replica, chunk
        self.trained = torch.is_grad_enabled()  # __init__ still runs in the calling thread
        self.output = self.error = None

    def run(self) -> None:
        torch.set_grad_enabled(self.trained)
        try:
            self.output = self.replica(self.chunk)
        except BaseException as error:
            error.add_note(f"raised in {self.name}")
            self.error = error


def parallel_apply(replicas: Sequence[nn.Module], chunks: Sequence[Tensor]) -> list[Tensor]:
    threads = [_Forward(i, *pair) for i, pair in enumerate(zip(replicas, chunks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for thread in threads:
        if thread.error is not None:
            raise thread.error
    return [thread.output for thread in threads]
