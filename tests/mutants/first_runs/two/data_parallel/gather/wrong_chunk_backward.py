# wrong: backward cuts the gradient with chunk, which does not give the sizes of the outputs back
from collections.abc import Sequence

import torch
from torch import Tensor


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, device, *outputs):
        ctx.homes = [output.device for output in outputs]
        return torch.cat([output.to(device) for output in outputs])

    @staticmethod
    def backward(ctx, grad):
        pieces = grad.chunk(len(ctx.homes))
        return None, *(piece.to(home) for piece, home in zip(pieces, ctx.homes))


def gather(outputs: Sequence[Tensor], device: torch.device) -> Tensor:
    return _Gather.apply(device, *outputs)
