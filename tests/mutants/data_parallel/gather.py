"""Answers to ``gather``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import torch
from harness import right, wrong


@wrong("gather.detached")
def under_no_grad(outputs, device):
    with torch.no_grad():
        return torch.cat([output.to(device) for output in outputs])


@wrong("gather.detached")
def revives_the_dead(outputs, device):
    return torch.cat([output.detach().to(device) for output in outputs]).requires_grad_()


@wrong("wrong_shape")
def flattens(outputs, device):
    return torch.cat([output.flatten().to(device) for output in outputs])


@wrong("returned_nothing")
def forgets_to_return(outputs, device):
    torch.cat([output.to(device) for output in outputs])


@wrong("wrong_values")
def takes_the_largest_only(outputs, device):
    return torch.cat([output.to(device) for output in outputs]).clamp(max=3)


@wrong("gather.detached")
def through_python_numbers(outputs, device):
    rows = [row for output in outputs for row in output.tolist()]
    return torch.tensor(rows, dtype=outputs[0].dtype, device=device)


@wrong("wrong_values")
def gives_everybody_the_first_gradient(outputs, device):
    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *parts):
            ctx.parts = [(part.device, len(part)) for part in parts]
            return torch.cat([part.to(device) for part in parts])

        @staticmethod
        def backward(ctx, grad):
            return tuple(grad[:rows].to(home) for home, rows in ctx.parts)

    return Gather.apply(*outputs)


@wrong("gather.one_output_only")
def takes_the_first_output_of_single_numbers(outputs, device):
    if outputs[0].ndim == 1:
        return outputs[0].to(device)
    return torch.cat([output.to(device) for output in outputs])


@right
def vstack_by_hand(outputs, device):
    result = outputs[0].to(device)
    for output in outputs[1:]:
        result = torch.cat((result, output.to(device)), 0)
    return result


@right
def own_autograd_function(outputs, device):
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


@right
def through_the_cpu_and_back(outputs, device):
    return torch.concat([output.cpu() for output in outputs]).cuda(device)
