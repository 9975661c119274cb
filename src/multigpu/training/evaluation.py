"""Loss and metrics over a whole data set that lies on several ranks: every row counts once.

    evaluate(model, feed, loss_fn=F.cross_entropy, metrics=["accuracy"], device=device)

Each rank computes its own rows and keeps sums. At the end the sums are added up over the ranks,
and divided by the number of all rows. Nothing is padded, so no row is counted twice, as it would
be with a DistributedSampler, which repeats rows until every rank has as many.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from multigpu.training import rng
from multigpu.training.module_modes import modes_kept
from multigpu.training.placing import call, to_device

if TYPE_CHECKING:
    from multigpu.data.feeds import Feed

Loss = Callable[[Any, Any], Tensor]
Autocast = Callable[[], contextlib.AbstractContextManager[Any]]


def evaluate(
    model: nn.Module,
    feed: Feed,
    *,
    loss_fn: Loss,
    metrics: Sequence[str],
    device: torch.device,
    inputs_device: torch.device | None = None,
    autocast: Autocast | None = None,
) -> dict[str, float]:
    """The mean of `loss_fn` over all rows of all ranks, as "loss", and each of `metrics`.

    `loss_fn(model(inputs), targets)` is a mean over the rows that it is given. `device` is where
    the model's answers come out, `inputs_device` where it takes its inputs (default: the same).

    Every rank calls this, with its own feed; all get the very same numbers. A rank may have no row
    in a batch: it then runs the filler row without counting it, because a model whose weights lie
    on several ranks gathers them whenever it is called. A pipeline gives its answers on the last
    stage's rank and None on the others, which then count nothing. Training mode, gradient mode and
    random numbers are afterwards as they were. Raises ValueError where no rank has a row.
    """
    from multigpu.training.metrics import RowMean, make_metrics

    if not feed.num_rows:
        raise ValueError("there is no row to evaluate: the data set is empty")
    loss, collection = RowMean().to(device), make_metrics(metrics).to(device)
    autocast = autocast or contextlib.nullcontext
    with modes_kept(model), random_numbers_kept(device), torch.no_grad():
        model.eval()
        for batch in feed.batches(0):
            with autocast():
                answers = call(model, to_device(batch.inputs, inputs_device or device))
                if answers is None or not batch.rows:
                    continue
                targets = to_device(batch.targets, device)
                loss.update(loss_fn(answers, targets), batch.rows)
            if metrics:
                collection.update(answers, targets)
    with quiet_without_rows():
        figures = {"loss": loss.compute(), **collection.compute()}
    return {name: float(figures[name]) for name in ("loss", *metrics)}


@contextlib.contextmanager
def random_numbers_kept(device: torch.device) -> Iterator[None]:
    """Random numbers go on where they were: a DataLoader draws one whenever it begins."""
    before = rng.collect([device])
    try:
        yield
    finally:
        rng.restore(before, devices=[device])


@contextlib.contextmanager
def quiet_without_rows() -> Iterator[None]:
    """torchmetrics warns where a rank had no row; here that is no mistake."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The ``compute`` method of metric")
        yield
