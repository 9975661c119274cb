# wrong: p.data = ... keeps the parameter object but puts new memory behind it
from collections.abc import Sequence

import torch
from torch import nn


def broadcast(replicas: Sequence[nn.Module]) -> None:
    for replica in replicas[1:]:
        for target, source in zip(replica.parameters(), replicas[0].parameters()):
            target.data = source.data.to(target.device, copy=True)
        with torch.no_grad():
            for target, source in zip(replica.buffers(), replicas[0].buffers()):
                target.copy_(source)
