"""Answers to ``gather`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import torch
from collections.abc import Sequence
from functools import reduce
from torch import Tensor

# %% vstack_by_hand: pass


def gather(outputs, device):
    result = outputs[0].to(device)
    for output in outputs[1:]:
        result = torch.cat((result, output.to(device)), 0)
    return result


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


# %% one_cat: pass

# right: move all and torch.cat


def gather(outputs, device):
    return torch.cat([output.to(device) for output in outputs], dim=0)


# %% one_fill_slices: pass

# right: one empty result, filled slice by slice in place (autograd follows copy_)


def gather(outputs, device):
    rows = sum(o.shape[0] for o in outputs)
    first = outputs[0]
    result = torch.empty((rows, *first.shape[1:]), dtype=first.dtype, device=device)
    start = 0
    for o in outputs:
        result[start : start + o.shape[0]] = o.to(device)
        start += o.shape[0]
    return result


# %% two_function: pass

# right: an autograd.Function whose backward sends each piece of the gradient home


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, device, *outputs):
        ctx.sizes = [output.size(0) for output in outputs]
        ctx.homes = [output.device for output in outputs]
        return torch.cat([output.to(device) for output in outputs], dim=0)

    @staticmethod
    def backward(ctx, grad):
        pieces = grad.split(ctx.sizes, dim=0)
        return None, *(piece.to(home) for piece, home in zip(pieces, ctx.homes))


def gather(outputs: Sequence[Tensor], device: torch.device) -> Tensor:
    return _Gather.apply(device, *outputs)


# %% two_reduce: pass

# right: fold the outputs into one tensor, two at a time


def gather(outputs: Sequence[Tensor], device: torch.device) -> Tensor:
    def append(whole: Tensor, output: Tensor) -> Tensor:
        return torch.concatenate((whole, output.to(device)))

    head, *tail = outputs
    return reduce(append, tail, head.to(device))


# %% two_slices: pass

# right: one empty result, every output written into its rows in place (autograd follows copy slices)


def gather(outputs: Sequence[Tensor], device: torch.device) -> Tensor:
    first = outputs[0]
    rows = sum(output.shape[0] for output in outputs)
    result = torch.empty((rows, *first.shape[1:]), dtype=first.dtype, device=device)
    start = 0
    for output in outputs:
        stop = start + output.shape[0]
        result[start:stop] = output.to(device)
        start = stop
    return result


# %% flattens: wrong wrong_shape


def gather(outputs, device):
    return torch.cat([output.flatten().to(device) for output in outputs])


# %% forgets_to_return: wrong returned_nothing


def gather(outputs, device):
    torch.cat([output.to(device) for output in outputs])


# %% takes_the_largest_only: wrong wrong_values


def gather(outputs, device):
    return torch.cat([output.to(device) for output in outputs]).clamp(max=3)


# %% two_chunk_backward: wrong unusable_result

# wrong: backward cuts the gradient with chunk, which does not give the sizes of the outputs back


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
