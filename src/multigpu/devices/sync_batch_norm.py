"""The operators of nn.SyncBatchNorm, which PyTorch has for CUDA only: the same on a CPU's tensors.

The second dimension are the channels; means and deviations are float32 also for half precision, as
in ATen/native/cuda/Normalization.cuh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _over_channels(values: Tensor, like: Tensor) -> Tensor:
    """(channels,) in a shape that goes with ``like``."""
    return values.reshape(1, -1, *[1] * (like.dim() - 2))


def _sum(tensor: Tensor) -> Tensor:
    """One number for each channel."""
    return tensor.sum([0, *range(2, tensor.dim())])


def stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The mean of each channel, and 1 over its standard deviation."""
    dims = [0, *range(2, input.dim())]
    var, mean = torch.var_mean(input.float(), dims, correction=0)
    return mean, torch.rsqrt(var + eps)


def gather_stats(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Those of all ranks together.  ``mean``, ``invstd``: (ranks, channels)."""
    weights, total = counts.float().reshape(-1, 1), counts.sum().float()
    whole = (mean * weights).sum(0) / total
    var = invstd.pow(-2) - eps + (mean - whole).square()
    var = (var * weights).sum(0) / total
    if running_mean is not None:
        running_mean.lerp_(whole.to(running_mean.dtype), momentum)
    if running_var is not None:
        running_var.lerp_((var * total / (total - 1)).to(running_var.dtype), momentum)
    return whole, torch.rsqrt(var + eps)


def elementwise(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
) -> Tensor:
    scale = invstd if weight is None else invstd * weight
    out = (input - _over_channels(mean, input)) * _over_channels(scale, input)
    out = out if bias is None else out + _over_channels(bias, input)
    return out.to(input.dtype)


def backward_reduce(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor | None, ...]:
    """The two sums that all ranks need, and the gradients of weight and bias."""
    grad = grad_out.float()
    total, product = _sum(grad), _sum(grad * (input - _over_channels(mean, input)))
    dtype = grad_out.dtype if weight is None else weight.dtype
    return (
        total if input_g else None,
        product if input_g else None,
        (product * invstd).to(dtype) if weight_g else None,
        total.to(dtype) if bias_g else None,
    )


def backward_elementwise(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """The gradient of the input; the sums and counts are those of all ranks."""
    total = count.sum()
    slope = _over_channels(invstd.square() * sum_dy_xmu / total, input)
    scale = _over_channels(invstd if weight is None else invstd * weight, input)
    centered = input - _over_channels(mean, input)
    grad = (grad_out - _over_channels(sum_dy / total, input) - centered * slope) * scale
    return grad.to(input.dtype)


# By the names of the operators
OPERATORS: dict[str, Callable[..., Any]] = {
    "batch_norm_stats": stats,
    "batch_norm_gather_stats_with_counts": gather_stats,
    "batch_norm_elemt": elementwise,
    "batch_norm_backward_reduce": backward_reduce,
    "batch_norm_backward_elemt": backward_elementwise,
}
