"""Loss and metrics over a whole data set that is divided among ranks: every row counts once.

    evaluate(model, feed, loss_fn=F.cross_entropy, metrics=["accuracy", "recall@10"], device=device)

Each rank computes its own rows and keeps sums. At the end the sums are added up over the ranks, and
only then divided by the number of all rows, so all ranks, however uneven their shares, get the same
figure, that of one process. (The mean of the ranks' own figures would give a row more weight on
a rank with few rows.) Nothing is padded, so no row is counted twice. A DistributedSampler counts
rows twice, because it repeats rows until every rank has the same number.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from multigpu.data.feeds import Batch, Feed, rows_of
from multigpu.training.distributed import in_a_group
from multigpu.training.loss import IGNORED, ClassLoss, LossFn, StepLoss
from multigpu.training.randomness import random_numbers_kept
from multigpu.training.strategy import Autocast, call, modes_kept, to_device

KNOWN = "accuracy, recall@k and ndcg@k (for example recall@10)"
MetricChoice = Sequence[str] | Mapping[str, Any]  # names, or a function or an object for each name
OBJECT_METHODS = ("update", "compute", "reset")  # of a metric of torchmetrics


def evaluate(
    model: nn.Module,
    feed: Feed,
    *,
    loss_fn: LossFn,
    metrics: MetricChoice,
    device: torch.device,
    place: Callable[[Batch], tuple[Any, Any]] | None = None,
    autocast: Autocast | None = None,
    batches: int | None = None,
) -> dict[str, float]:
    """The mean of `loss_fn` over all rows of all ranks, as "loss", and each of `metrics`.

    `loss_fn(model(inputs), targets)` is a mean over its rows, or a pair: a sum, and the weight to
    divide it by. `metrics` are names or a mapping, as `Metrics` takes. `device` has the model's
    outputs. `place` returns a batch's inputs and targets where they are needed (default: both on
    `device`). `batches`: use only this many batches, for a trial.

    Every rank calls this with its own feed, and all get exactly the same numbers. A rank may have
    no row in a batch: it then runs the filler row without counting it, because a model whose
    weights are on several ranks gathers them whenever it is called. A pipeline returns its outputs
    on the last stage's rank and None on the others, which then count nothing. Training mode,
    gradient mode and random numbers are restored afterwards.
    """
    of_classes = ClassLoss.of(loss_fn)
    loss_fn = of_classes or loss_fn
    ignored = of_classes.ignored if of_classes else IGNORED
    loss, counted = StepLoss(), Metrics(metrics, ignored=ignored, device=device)
    autocast = autocast or contextlib.nullcontext
    with modes_kept(model), random_numbers_kept(device), torch.no_grad():
        model.eval()
        for batch in itertools.islice(feed.batches(0), batches):
            both = batch.inputs, batch.targets
            inputs, targets = to_device(both, device) if place is None else place(batch)
            with autocast():
                answers = call(model, inputs)
                if answers is None or not batch.rows:
                    continue
                returned = loss_fn(answers, targets)
            loss.add(returned, batch.rows, batch.rows)
            counted.update(answers, targets)
    sums = torch.tensor([float(loss.sum), float(loss.weight)], dtype=torch.float64)
    mine = torch.cat([sums, counted.counts.flatten().cpu()]).to(device)
    total, weight, *counts = over_ranks(mine).tolist()
    figures = {"loss": total / weight if weight else float("nan")}
    return figures | counted.figures(counts)


def over_ranks(sums: Tensor) -> Tensor:
    """`sums` of all ranks added up, in the ranks' order: every rank gets the same bits."""
    if not in_a_group():
        return sums
    each = [torch.empty_like(sums) for _ in range(dist.get_world_size())]
    dist.all_gather(each, sums)
    return torch.stack(each).sum(dim=0)


class Metrics:
    """Counts metrics over the batches of an evaluation.

    `chosen` are names that `named_metric` knows, or a mapping from each name to one of

    function(outputs, targets)   returns a value for each row, or a pair: a sum, and the weight to
                                 divide it by. Both are added up over all batches and ranks.
    object                       has update(outputs, targets), compute() and reset(), as a metric of
                                 torchmetrics has. It exchanges its own messages between ranks:
                                 compute() is called on every rank.

    Raises ValueError for a name that is not known, TypeError for a metric of another kind.
    """

    def __init__(
        self, chosen: MetricChoice, *, ignored: int = IGNORED, device: torch.device | None = None
    ) -> None:
        if not isinstance(chosen, Mapping):
            chosen = {name: named_metric(name, ignored=ignored) for name in chosen}
        self.functions: dict[str, Callable[[Any, Any], Any]] = {}
        self.objects: dict[str, Any] = {}
        for name, metric in chosen.items():
            if name == "loss":
                raise ValueError("a metric cannot be called 'loss': that is the mean of loss_fn")
            is_object = all(callable(getattr(metric, method, None)) for method in OBJECT_METHODS)
            if isinstance(metric, type) or not (is_object or callable(metric)):
                raise TypeError(
                    f"metrics[{name!r}]={metric!r}: give a function (outputs, targets), or an "
                    "object with update, compute and reset"
                )
            (self.objects if is_object else self.functions)[name] = metric
        for metric in self.objects.values():
            metric.reset()
            if isinstance(metric, nn.Module):
                metric.to(device)
        self.order = tuple(chosen)
        # The sum and the weight of each function, on the device: no batch waits for a GPU.
        self.counts = torch.zeros(len(self.functions), 2, dtype=torch.float64, device=device)

    def update(self, outputs: Any, targets: Any) -> None:
        """Count a batch."""
        for counts, (name, function) in zip(self.counts, self.functions.items(), strict=True):
            total, weight = sum_and_weight(function(outputs, targets), targets, name=name)
            counts[0] += total
            counts[1] += weight
        for metric in self.objects.values():
            metric.update(outputs, targets)

    def figures(self, counts: Sequence[float]) -> dict[str, float]:
        """Each metric by its name, from the `counts` of all ranks."""
        pairs = zip(counts[::2], counts[1::2], strict=True)
        means = [total / weight if weight else float("nan") for total, weight in pairs]
        found = dict(zip(self.functions, means, strict=True))
        found |= {name: float(metric.compute()) for name, metric in self.objects.items()}
        return {name: found[name] for name in self.order}


def named_metric(name: str, *, ignored: int) -> Callable[[Any, Any], tuple[Tensor, Tensor]]:
    """The metric of a name: a mean over the rows of a value for the place of the right class.

    accuracy   1 at place 1 of the scores, the highest first
    recall@k   1 up to place k
    ndcg@k     1 / log2(place + 1) up to place k. With one right class per row the ideal is place 1,
               which counts 1, so nothing is left to divide by. (Järvelin and Kekäläinen 2002,
               doi.org/10.1145/582415.582418)

    Of equal scores that of the lower class comes first. A target whose own score is NaN has
    no place. A row whose target is `ignored` does not count. In a sequence each token
    counts as a row: scores (rows, block, classes) and targets (rows, block).
    """
    match = re.fullmatch(r"(recall|ndcg)@([1-9]\d*)", "recall@1" if name == "accuracy" else name)
    if match is None:
        raise ValueError(f"there is no metric {name!r}; the known ones are {KNOWN}")
    kind, k = match[1], int(match[2])

    def metric(scores: Any, targets: Any) -> tuple[Tensor, Tensor]:
        if not isinstance(scores, Tensor) or not isinstance(targets, Tensor):
            raise TypeError(
                f"the metric {name} needs a tensor of scores and one of targets, but the model "
                f"returned a {type(scores).__name__} and the targets are a "
                f"{type(targets).__name__}. Give functions: metrics={{'name': function}}."
            )
        if targets.is_floating_point():
            raise ValueError(
                f"the metric {name} compares scores with the right class of each row, but the "
                f"targets are {targets.dtype} numbers. For a regression give metrics=(); the loss "
                "is still evaluated. Classes are integers: targets.long()."
            )
        if scores.shape[:-1] != targets.shape:
            raise ValueError(
                f"scores of shape {tuple(scores.shape)} need targets of shape "
                f"{tuple(scores.shape[:-1])}, one class per row; these have {tuple(targets.shape)}"
            )
        counted = targets != ignored  # an ignored target is not an index into the scores
        right = torch.where(counted, targets, 0).unsqueeze(-1)
        own = scores.gather(-1, right)
        before = torch.arange(scores.shape[-1], device=scores.device) < right
        ahead = ~(scores <= own) | (scores == own) & before  # NaN is ahead of every number
        place = ahead.sum(dim=-1)
        found = counted & ~own.squeeze(-1).isnan() & (place < k)
        at = place[found].bincount(minlength=k).double()  # rows at each place
        if kind == "ndcg":
            at = at / torch.arange(2.0, k + 2, dtype=at.dtype, device=at.device).log2()
        return at.sum(), counted.sum()

    return metric


def sum_and_weight(returned: Any, targets: Any, *, name: str) -> tuple[Any, Any]:
    """What the metric `name` returned for a batch, as a sum and its weight.

    Raises ValueError unless it is a pair, or a tensor with a value for each row.
    """
    if isinstance(returned, tuple) and len(returned) == 2:
        return returned
    rows = rows_of(targets)
    if not isinstance(returned, Tensor) or returned.shape[:1] != (rows,):
        shape = f" {tuple(returned.shape)}" if isinstance(returned, Tensor) else ""
        raise ValueError(
            f"metrics[{name!r}] returned a {type(returned).__name__}{shape} for {rows} rows: "
            "return a value for each row, or a pair, a sum and the weight to divide it by. A mean "
            "of the batch would be wrong where batches differ in size."
        )
    return returned.double().sum(), returned.numel()
