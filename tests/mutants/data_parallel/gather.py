"""Answers to ``gather``: how learners get it wrong, and ways to get it right."""
# ruff: noqa (learners write like this)

import torch
from harness import right, wrong


@wrong("gather.stacked")
def stacks(outputs, device):
    try:
        return torch.stack([output.to(device) for output in outputs])
    except RuntimeError:  # chunks of different sizes
        return torch.cat([output.to(device) for output in outputs])


@wrong("gather.along_columns")
def along_the_last_dimension(outputs, device):
    return torch.cat([output.to(device) for output in outputs], dim=-1)


@wrong("gather.detached")
def detaches(outputs, device):
    return torch.cat([output.detach().to(device) for output in outputs])


@wrong("gather.detached")
def under_no_grad(outputs, device):
    with torch.no_grad():
        return torch.cat([output.to(device) for output in outputs])


@wrong("gather.detached")
def revives_the_dead(outputs, device):
    return torch.cat([output.detach().to(device) for output in outputs]).requires_grad_()


@wrong("gather.partly_detached")
def detaches_what_moves(outputs, device):
    return torch.cat([o if o.device == device else o.data.to(device) for o in outputs])


@wrong("gather.device_order")
def sorts_by_gpu(outputs, device):
    ordered = sorted(outputs, key=lambda output: output.device.index)
    return torch.cat([output.to(device) for output in ordered])


@wrong("gather.device_order")
def target_gpu_first(outputs, device):
    ordered = sorted(outputs, key=lambda output: output.device != device)
    return torch.cat([output.to(device) for output in ordered])


@wrong("gather.reversed")
def collects_at_the_front(outputs, device):
    result = outputs[0].to(device)
    for output in outputs[1:]:
        result = torch.cat([output.to(device), result])
    return result


@wrong("gather.interleaved")
def deals_rows_back(outputs, device):
    rows = []
    for i in range(max(len(output) for output in outputs)):
        rows += [output[i].to(device) for output in outputs if i < len(output)]
    return torch.stack(rows)


@wrong("gather.wrong_gpu")
def always_on_the_first(outputs, device):
    return torch.cat([output.to(outputs[0].device) for output in outputs])


@wrong("gather.wrong_gpu")
def always_on_cuda_zero(outputs, device):
    return torch.cat([output.to("cuda:0") for output in outputs])


@wrong("gather.left_on_cpu")
def through_the_cpu(outputs, device):
    return torch.cat([output.cpu() for output in outputs])


@wrong("gather.not_a_tensor")
def moves_but_does_not_join(outputs, device):
    return [output.to(device) for output in outputs]


@wrong("gather.added")
def adds_them_up(outputs, device):
    rows = max(len(output) for output in outputs)
    total = torch.zeros(rows, *outputs[0].shape[1:], dtype=outputs[0].dtype, device=device)
    for output in outputs:
        padded = torch.zeros_like(total)
        padded[: len(output)] = output.to(device)
        total = total + padded
    return total


@wrong("gather.added")
def takes_the_mean(outputs, device):
    rows = min(len(output) for output in outputs)
    return torch.stack([output[:rows].to(device) for output in outputs]).mean(0)


@wrong("gather.rows_missing")
def first_output_only(outputs, device):
    return outputs[0].to(device)


@wrong("gather.rows_missing")
def trims_to_the_shortest(outputs, device):
    rows = min(len(output) for output in outputs)
    return torch.cat([output[:rows].to(device) for output in outputs])


@wrong("gather.padded")
def pads_to_the_longest(outputs, device):
    rows = max(len(output) for output in outputs)
    result = outputs[0].new_zeros(len(outputs) * rows, *outputs[0].shape[1:]).to(device)
    for i, output in enumerate(outputs):
        result[i * rows : i * rows + len(output)] = output.to(device)
    return result


@wrong("gather.dtype_changed")
def into_a_float_buffer(outputs, device):
    result = torch.zeros(sum(map(len, outputs)), *outputs[0].shape[1:], device=device)
    start = 0
    for output in outputs:
        result[start : start + len(output)] = output.to(device)
        start += len(output)
    return result


@wrong("gather.shape_changed")
def flattens(outputs, device):
    return torch.cat([output.flatten().to(device) for output in outputs])


@wrong("gather.gradient_scaled")
def divides_the_gradient(outputs, device):
    result = torch.cat([output.to(device) for output in outputs])
    if result.requires_grad:
        result.register_hook(lambda grad: grad / len(outputs))
    return result


@wrong("gather.returned_nothing")
def forgets_to_return(outputs, device):
    torch.cat([output.to(device) for output in outputs])


@wrong("exception", status="crash")
def joins_before_it_moves(outputs, device):
    return torch.cat(outputs).to(device)


@wrong("gather.values_changed")
def takes_the_largest_only(outputs, device):
    return torch.cat([output.to(device) for output in outputs]).clamp(max=3)


@wrong("gather.detached")
def through_python_numbers(outputs, device):
    rows = [row for output in outputs for row in output.tolist()]
    return torch.tensor(rows, dtype=outputs[0].dtype, device=device)


@wrong("gather.gradient_wrong")
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


@wrong("gather.rows_missing")
def takes_the_first_output_of_single_numbers(outputs, device):
    if outputs[0].ndim == 1:
        return outputs[0].to(device)
    return torch.cat([output.to(device) for output in outputs])


@wrong("gather.values_changed")
def goes_through_half_precision(outputs, device):
    return torch.cat([output.half().to(device) for output in outputs]).to(outputs[0].dtype)


@wrong("gather.values_changed")
def travels_as_float32(outputs, device):
    return torch.cat([output.float().to(device).to(output.dtype) for output in outputs])


@right
def vstack_by_hand(outputs, device):
    result = outputs[0].to(device)
    for output in outputs[1:]:
        result = torch.cat((result, output.to(device)), 0)
    return result


@right
def into_a_buffer(outputs, device):
    first = outputs[0]
    rows = sum(output.size(0) for output in outputs)
    result = torch.empty((rows, *first.shape[1:]), dtype=first.dtype, device=device)
    start = 0
    for output in outputs:
        result[start : start + output.size(0)] = output.to(device)
        start += output.size(0)
    return result


@right
def row_by_row(outputs, device):
    return torch.stack([row.to(device) for output in outputs for row in output])


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
