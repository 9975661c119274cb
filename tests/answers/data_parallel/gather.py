"""Answers to ``gather`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch


# %% own_autograd_function: pass
def gather(outputs, device):
    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, target, *parts):
            ctx.homes = [part.device for part in parts]
            ctx.sizes = [len(part) for part in parts]
            return torch.cat([part.to(target) for part in parts])

        @staticmethod
        def backward(ctx, grad):
            pieces = grad.split(ctx.sizes)
            return None, *(piece.to(home) for piece, home in zip(pieces, ctx.homes))

    return Gather.apply(device, *outputs)


# %% through_the_cpu_and_back: pass
def gather(outputs, device):
    return torch.concat([output.cpu() for output in outputs]).cuda(device)


# %% cuts_the_gradient_with_chunk: wrong unusable_result
class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, device, *outputs):
        ctx.homes = [output.device for output in outputs]
        return torch.cat([output.to(device) for output in outputs])

    @staticmethod
    def backward(ctx, grad):
        pieces = grad.chunk(len(ctx.homes))
        return None, *(piece.to(home) for piece, home in zip(pieces, ctx.homes))


def gather(outputs, device):
    return _Gather.apply(device, *outputs)


# %% divides_the_gradient: wrong wrong_values
def gather(outputs, device):
    result = torch.cat([output.to(device) for output in outputs])
    if result.requires_grad:
        result.register_hook(lambda gradient: gradient / len(outputs))
    return result
