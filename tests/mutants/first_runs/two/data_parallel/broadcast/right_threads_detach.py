# right: one thread per replica; detach() shares the memory, so copy_ needs no no_grad
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from torch import nn


def _tensors(module: nn.Module) -> list:
    parameters = module.named_parameters(remove_duplicate=False)
    buffers = module.named_buffers(remove_duplicate=False)
    return [tensor.detach() for _, tensor in chain(parameters, buffers)]


def broadcast(replicas: Sequence[nn.Module]) -> None:
    source = _tensors(replicas[0])

    def update(replica: nn.Module) -> None:
        for target, values in zip(_tensors(replica), source, strict=True):
            target.copy_(values)

    with ThreadPoolExecutor(max_workers=len(replicas)) as pool:
        list(pool.map(update, replicas[1:]))
