# wrong: one generator for all replicas; it is used up after the second replica
from collections.abc import Sequence
from itertools import chain

import torch
from torch import nn


def broadcast(replicas: Sequence[nn.Module]) -> None:
    source = chain(replicas[0].parameters(), replicas[0].buffers())
    with torch.no_grad():
        for replica in replicas[1:]:
            for target, values in zip(chain(replica.parameters(), replica.buffers()), source):
                target.copy_(values)
