# wrong: copies floating-point tensors only, so integer buffers (num_batches_tracked) stay old
from collections.abc import Sequence

import torch
from torch import nn


@torch.no_grad()
def broadcast(replicas: Sequence[nn.Module]) -> None:
    for replica in replicas[1:]:
        targets = [*replica.parameters(), *replica.buffers()]
        sources = [*replicas[0].parameters(), *replicas[0].buffers()]
        for target, source in zip(targets, sources):
            if target.is_floating_point():
                target.copy_(source)
