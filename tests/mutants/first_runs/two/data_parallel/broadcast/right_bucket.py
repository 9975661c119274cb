# right: one flat bucket per dtype travels to each GPU, its pieces are copied into place there
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import nn


def _groups(module: nn.Module) -> dict:
    groups = defaultdict(list)
    for _, tensor in module.named_parameters():
        groups[tensor.dtype].append(tensor.data)
    for _, tensor in module.named_buffers(remove_duplicate=False):
        groups[tensor.dtype].append(tensor.data)
    return groups


def broadcast(replicas: Sequence[nn.Module]) -> None:
    buckets = {
        dtype: torch.cat([tensor.reshape(-1) for tensor in tensors])
        for dtype, tensors in _groups(replicas[0]).items()
    }
    for replica in replicas[1:]:
        for dtype, tensors in _groups(replica).items():
            bucket = buckets[dtype].to(tensors[0].device)
            offset = 0
            for tensor in tensors:
                piece = bucket[offset : offset + tensor.numel()]
                tensor.copy_(piece.view(tensor.shape))
                offset += tensor.numel()
