"""`torch.autocast("cuda")` on virtual GPUs.

PyTorch keeps the switch and the dtype for "cuda" itself, but the core applies a device's autocast
rules by the kind of tensor, and the shells look like CPU tensors to it. So while a call runs, the
CPU's autocast is switched on with CUDA's dtype: matrix products and convolutions in half precision.
The functions that CUDA also takes back to float32, and the CPU does not, are listed here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

# docs.pytorch.org/docs/stable/amp.html, "CUDA Ops that can autocast to float32"
# fmt: off
_FLOAT32_NAMES = (
    "__rpow__", "__pow__", "acos", "asin", "cosh", "cosine_embedding_loss", "cdist",
    "cosine_similarity", "cross_entropy_loss", "cumprod", "cumsum", "dist", "erfinv", "exp",
    "expm1", "group_norm", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss",
    "layer_norm", "log", "log10", "log_softmax", "log1p", "log2", "logsumexp",
    "margin_ranking_loss", "mse_loss", "multilabel_margin_loss", "multi_margin_loss",
    "native_layer_norm", "nll_loss", "nll_loss2d", "nll_loss_nd", "norm", "pdist",
    "poisson_nll_loss", "pow", "prod", "reciprocal", "renorm", "rsqrt", "sinh",
    "smooth_l1_loss", "soft_margin_loss", "softmax", "softmin", "softplus", "sum", "tan",
    "triplet_margin_loss", "binary_cross_entropy_with_logits",
)
# fmt: on
_OWNERS = (torch, torch.Tensor, torch._C._nn, torch.nn.functional)
_FLOAT32 = {
    function
    for owner in _OWNERS
    for name in _FLOAT32_NAMES
    if (function := getattr(owner, name, None)) is not None
}
_HALF = (torch.float16, torch.bfloat16)


def is_on() -> bool:
    """Whether the caller is inside `torch.autocast`, for "cuda" or for "cpu"."""
    return torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")


def call(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """`func(*args, **kwargs)` under CUDA's autocast rules, and not the CPU's."""
    if not torch.is_autocast_enabled("cuda"):
        return _as_on_cpu(False, func, args, kwargs)
    if func is torch._C._nn.binary_cross_entropy:
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
            "autocast.\nMany models use a sigmoid layer right before the binary cross entropy "
            "layer.\nIn this case, combine the two layers using "
            "torch.nn.functional.binary_cross_entropy_with_logits\nor torch.nn.BCEWithLogitsLoss. "
            " binary_cross_entropy_with_logits and BCEWithLogits are\nsafe to autocast."
        )
    if func in _FLOAT32:
        args, kwargs = tree_map(_in_float32, (args, kwargs))
    return _as_on_cpu(True, func, args, kwargs)


def _as_on_cpu(enabled: bool, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call `func` with the CPU's autocast switched on or off, and CUDA's dtype."""
    before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    torch.set_autocast_enabled("cpu", enabled)
    torch.set_autocast_dtype("cpu", torch.get_autocast_dtype("cuda"))
    try:
        return func(*args, **kwargs)
    finally:
        torch.set_autocast_enabled("cpu", before[0])
        torch.set_autocast_dtype("cpu", before[1])


def _in_float32(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_cuda and value.dtype in _HALF:
        return value.float()
    return value
