"""How good a model's scores are, counted so that the answer is the same however the rows lie.

    make_metrics(["accuracy", "recall@10", "ndcg@10"])

Every one of these metrics asks for each row: at which place of the scores, the highest first, does
the right class stand? What is kept is whole numbers, how many rows had their class at place 1, 2,
... k. torchmetrics adds them up over the ranks, and only then a fraction is made of them: that is
why one process and four ranks with uneven shares give the same figure to the last bit. (The mean
of the ranks' own figures would weigh a row on a rank with few rows more than one elsewhere.)

torchmetrics has its own RetrievalNormalizedDCG and RetrievalRecall, for queries that may have many
right answers; they keep every score until the end, and take a score of 0 or less for "not found".
With one right class per row, as here, both come to the same on probabilities, which the tests
verify, and k numbers are enough.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from multigpu.ranks.warming import sparing_scipy

with sparing_scipy():
    from torchmetrics import Metric, MetricCollection


class PlaceOfTarget(Metric):
    """Counts the rows whose target stands at each of the first k places of the scores.

    Equal scores are put in the order in which `torch.topk` puts them. A target whose own score is
    NaN is at no place.
    """

    full_state_update = False
    higher_is_better = True
    is_differentiable = False
    places: Tensor  # (k,)
    rows: Tensor  # ()

    def __init__(self, k: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if k < 1:
            raise ValueError(f"k={k}: look at the first place at least, k=1")
        self.k = k
        zeros = torch.zeros(k, dtype=torch.int64)
        self.add_state("places", default=zeros, dist_reduce_fx="sum")
        self.add_state("rows", default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Count `scores` (rows, classes) against `targets` (rows,), the right class of each row.

        In a sequence each token counts as a row: (rows, block, classes) and (rows, block).
        Raises ValueError when the shapes do not fit, or when there are fewer than k classes.
        """
        if scores.shape[:-1] != targets.shape:
            raise ValueError(
                f"scores of shape {tuple(scores.shape)} need targets of shape "
                f"{tuple(scores.shape[:-1])}, one class per row; these have {tuple(targets.shape)}"
            )
        if scores.shape[-1] < self.k:
            raise ValueError(
                f"the best {self.k} of {scores.shape[-1]} classes were asked for: "
                f"use k={scores.shape[-1]} or less"
            )
        best = scores.topk(self.k, dim=-1)  # (..., k)
        found = (best.indices == targets.unsqueeze(-1)) & ~best.values.isnan()
        self.places += found.reshape(-1, self.k).sum(dim=0)
        self.rows += targets.numel()

    def compute(self) -> Tensor:
        """The mean over the rows of what each place is worth."""
        return (self.places * self.worth()).sum() / self.rows

    def worth(self) -> Tensor:
        """What a row counts whose target stands at place 1, 2, ... k: float64 (k,)."""
        raise NotImplementedError


class RecallAtK(PlaceOfTarget):
    """The share of rows whose target is among the k highest scores. k=1: accuracy."""

    def worth(self) -> Tensor:
        """Each of the k places counts 1."""
        return torch.ones(self.k, dtype=torch.float64, device=self.places.device)


class NDCGAtK(PlaceOfTarget):
    """Normalised discounted cumulative gain: 1/log2(place + 1) up to place k, else 0.

    With one right class per row the ideal is place 1, which counts 1, so nothing is left to divide
    by. (Järvelin and Kekäläinen 2002, doi.org/10.1145/582415.582418)
    """

    def worth(self) -> Tensor:
        """Place 1 counts 1, place 2 counts 0.63, place 10 counts 0.29."""
        place = torch.arange(1, self.k + 1, dtype=torch.float64, device=self.places.device)
        return 1 / torch.log2(place + 1)


class RowMean(Metric):
    """The mean over all rows of all ranks, from means over some rows; float64.

    torchmetrics' MeanMetric drops NaN, or the weights with it. A loss that is NaN must be seen.
    """

    full_state_update = False
    total: Tensor
    rows: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        zero = torch.tensor(0.0, dtype=torch.float64)
        self.add_state("total", default=zero, dist_reduce_fx="sum")
        self.add_state("rows", default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, mean: Tensor, rows: int) -> None:
        """Add `rows` rows whose mean is `mean`."""
        self.total += mean.detach().double() * rows
        self.rows += rows

    def compute(self) -> Tensor:
        """The mean of all rows."""
        return self.total / self.rows


KINDS = {"recall": RecallAtK, "ndcg": NDCGAtK}
KNOWN = "accuracy, recall@k and ndcg@k (for example recall@10)"


def make_metrics(names: Sequence[str]) -> MetricCollection:
    """The metrics with these names, to be fed with `update(scores, targets)`.

    Raises ValueError for a name that is not known.
    """
    return MetricCollection({name: make_metric(name) for name in names})


def make_metric(name: str) -> PlaceOfTarget:
    """The metric with this name. Raises ValueError."""
    if name == "accuracy":
        return RecallAtK(1)
    match = re.fullmatch(r"(recall|ndcg)@([1-9]\d*)", name)
    if match is None:
        raise ValueError(f"no metric is called {name!r}: there are {KNOWN}")
    return KINDS[match[1]](int(match[2]))
