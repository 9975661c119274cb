"""The loss of a step, whose gradients are those of the whole batch, however that is divided.

A batch is divided among ranks and into parts, and the mean of their means is not its mean: parts
may have different numbers of rows, or of targets that count. What `loss_fn` returns is therefore
weighted (`StepLoss`), and PyTorch's losses of classes return their sum and weight (`ClassLoss`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Subset, TensorDataset

from multigpu.data.feeds import FeedSource

# (outputs, targets) -> the mean over the rows, or their sum and the number to divide it by
LossFn = Callable[[Any, Any], Any]

CLASS_LOSSES = {nn.CrossEntropyLoss: F.cross_entropy, nn.NLLLoss: F.nll_loss}
IGNORED = -100  # PyTorch's default for the targets that do not count


class ClassLoss:
    """One of PyTorch's losses of classes as a `loss_fn` that returns its sum and its weight.

    Their mean divides by the targets that are not ignored, or by the weights of their classes.
    """

    def __init__(self, function: Callable[..., Tensor], given: dict[str, Any]) -> None:
        self.function, self.given = function, given
        self.weights: Tensor | None = given.get("weight")  # one per class
        self.ignored: int = given.get("ignore_index", IGNORED)

    @classmethod
    def of(cls, loss_fn: LossFn) -> ClassLoss | None:
        """`loss_fn`, if it is such a loss and not a subclass, which may compute something else."""
        if isinstance(loss_fn, ClassLoss):
            return loss_fn
        function, given = loss_fn, dict[str, Any]()
        if type(loss_fn) in CLASS_LOSSES:
            function = CLASS_LOSSES[type(loss_fn)]
            names = ("weight", "ignore_index", "label_smoothing", "reduction")
            given = {name: getattr(loss_fn, name) for name in names if hasattr(loss_fn, name)}
        elif isinstance(loss_fn, functools.partial) and not loss_fn.args:
            function, given = loss_fn.func, dict(loss_fn.keywords)
        known = function in CLASS_LOSSES.values() and given.pop("reduction", "mean") == "mean"
        return cls(function, given) if known else None

    def __call__(self, outputs: Tensor, targets: Tensor) -> Any:
        if self.weights is not None and self.weights.device != outputs.device:
            self.given["weight"] = self.weights = self.weights.to(outputs.device)
        if targets.is_floating_point():  # a share of each class: their mean is over the rows
            return self.function(outputs, targets, **self.given)
        total = self.function(outputs, targets, **self.given, reduction="sum")
        counts = targets != self.ignored
        if self.weights is None:
            return total, counts.sum()
        return total, (self.weights[targets.where(counts, 0)] * counts).sum()


def exact_over_parts(loss_fn: LossFn, data: Any, *, divided: bool) -> LossFn:
    """A loss that trains as `loss_fn` does on the whole batch, however the batch is divided.

    PyTorch's classification losses become their sum and weight, unless every row has the weight 1.
    Finding that out here needs no message; in training, ranks would have to exchange it in each
    step. Raises ValueError for PyTorch's losses that are sums, if a batch is divided.
    """
    given = getattr(loss_fn, "keywords", {})  # of a functools.partial
    reduction = given.get("reduction", getattr(loss_fn, "reduction", "mean"))
    if divided and reduction == "sum" and isinstance(loss_fn, nn.Module | functools.partial):
        raise ValueError(
            f"loss_fn={loss_fn} is not a mean over rows, and each batch is divided among ranks or "
            "parts. Give a function that returns two numbers, the sum of the losses "
            "(reduction='sum') and what to divide it by, such as the number of rows."
        )
    exact = ClassLoss.of(loss_fn)
    if exact is None:
        return loss_fn
    # Only these classes: a subclass may change the targets when it is read.
    while (type(data) is Subset or isinstance(data, FeedSource)) and hasattr(data, "dataset"):
        data = data.dataset  # it has all targets of `data`, and perhaps more
    none_ignored = type(data) is TensorDataset and not (data.tensors[-1] == exact.ignored).any()
    return loss_fn if none_ignored and exact.weights is None else exact


class StepLoss:
    """The loss of one optimizer step on this rank, added up over the parts of its batch.

    `loss_fn` may return the mean over the rows, or a pair: a sum, and the weight to divide it by,
    for example the number of targets that are not ignored. A mean is weighted by its part's rows
    before backward. The whole batch's weight is only known after the last forward of all ranks, so
    the gradients of sums are divided then (`Strategy.complete_gradients`).
    """

    def __init__(self, averaged_over: int = 1) -> None:
        """`averaged_over`: the ranks over which the gradients are averaged later."""
        self.averaged_over = averaged_over
        self.sum: Tensor | float = 0.0  # of the losses of this rank's rows
        self.weight: Tensor | float = 0.0  # their number, or the weights that loss_fn has returned
        self.of_sums = False

    @property
    def mean(self) -> Tensor:
        """The mean over this rank's rows so far; NaN on a rank without rows."""
        return torch.as_tensor(self.sum) / torch.as_tensor(self.weight)

    def add(self, returned: Any, rows: int, global_rows: int) -> Tensor:
        """Take in the loss of `rows` of the step's `global_rows`.

        Returns the tensor to call backward on: its gradients, added up over all parts and averaged
        over ranks, are those of the mean, or of the sum. Raises TypeError if it is not a loss.
        """
        self.of_sums = isinstance(returned, tuple) and len(returned) == 2
        if self.of_sums:
            loss, weight = map(require_number, (returned[0], torch.as_tensor(returned[1])))
            share = self.averaged_over if rows else 0.0
        else:
            loss = require_number(returned)
            share = self.averaged_over * rows / global_rows
        if rows:  # a filler row does not count, even if its loss is NaN: 0 · NaN would be NaN
            total = loss.detach().double()
            self.sum = self.sum + (total if self.of_sums else total * rows)
            self.weight = self.weight + (weight.detach().double() if self.of_sums else rows)
        return loss if share == 1 else loss * share


def require_number(loss: Any) -> Tensor:
    """The loss, if it is a single number to call backward on.  Raises TypeError."""
    if isinstance(loss, Tensor) and loss.dim() == 0:
        return loss
    what = (
        f"a tensor {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
    )
    raise TypeError(
        f"loss_fn returned {what}: it must return the mean over the rows, one tensor (), or a pair "
        "of such tensors, a sum and the weight to divide it by"
    )
