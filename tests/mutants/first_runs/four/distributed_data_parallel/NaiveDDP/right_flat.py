# Style: one flat broadcast for each dtype, gradients flat as well, nothing reused.
from itertools import chain

import torch
import torch.distributed as dist
from torch import nn


def _by_dtype(tensors):
    groups = {}
    for t in tensors:
        groups.setdefault((t.dtype, t.device), []).append(t)
    return groups.values()


def _through_flat(tensors, send):
    """Put tensors of one dtype end to end, let send change that vector in place, and copy back."""
    flat = torch.cat([t.detach().reshape(-1) for t in tensors])
    send(flat)
    offset = 0
    for t in tensors:
        t.detach().copy_(flat[offset : offset + t.numel()].view(t.shape))
        offset += t.numel()


class NaiveDDP(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner = module
        for group in _by_dtype(chain(module.parameters(), module.buffers())):
            _through_flat(group, lambda flat: dist.broadcast(flat, 0))

    def forward(self, *inputs, **named):
        """Call the module."""
        return self.inner(*inputs, **named)

    def _mean(self, flat):
        dist.all_reduce(flat)
        flat /= dist.get_world_size()

    @torch.no_grad()
    def sync_gradients(self) -> None:
        """Average the gradients over all ranks."""
        trainable = [p for p in self.inner.parameters() if p.requires_grad]
        for p in trainable:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        for group in _by_dtype([p.grad for p in trainable]):
            _through_flat(group, self._mean)
