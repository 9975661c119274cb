"""An evaluation counts each row once, on however many ranks, and leaves no trace in the model;
its metrics are those of torchmetrics.
"""

import importlib
import itertools
import math
import random
from dataclasses import dataclass

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from multigpu import run_ranks
from multigpu.data.feeds import Batch, feed_for
from multigpu.training import TrainConfig, Trainer
from multigpu.training.evaluate import Metrics, evaluate
from multigpu.training.single import Single

CPU = torch.device("cpu")
NAMES = ("recall@3", "accuracy", "ndcg@3")


def data(rows):
    generator = torch.Generator().manual_seed(rows)
    inputs = torch.randn(rows, 6, generator=generator)
    return TensorDataset(inputs, torch.randint(0, 5, (rows,), generator=generator))


def model_of(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 5))


@dataclass
class Prescribed:
    """A feed with a given number of this rank's rows in each step."""

    inputs: torch.Tensor
    targets: torch.Tensor
    counts: list[int]  # of this rank
    totals: list[int]  # of all ranks
    num_rows: int

    def batches(self, epoch, *, start=0):
        at = 0
        for count, total in list(zip(self.counts, self.totals, strict=True))[start:]:
            rows = slice(at, at + count) if count else slice(0, 1)
            yield Batch(self.inputs[rows], self.targets[rows], rows=count, global_rows=total)
            at += count


def prescribed(dataset, shares, rank):
    """`shares[step][rank]` rows; the ranks' rows follow each other in the data."""
    inputs, targets = dataset.tensors
    counts = [[step[each] for step in shares] for each in range(len(shares[0]))]
    first = sum(map(sum, counts[:rank]))
    mine = slice(first, first + sum(counts[rank])) if sum(counts[rank]) else slice(0, 1)
    totals = [sum(step) for step in shares]
    return Prescribed(inputs[mine], targets[mine], counts[rank], totals, len(targets))


def over_ranks(cases):
    """Each case on this rank: of rows in equal shares, and in the prescribed ones."""
    rank, size, model, found = dist.get_rank(), dist.get_world_size(), model_of(), []
    for rows, batch_size, shares in cases:
        dataset = data(rows)
        even = feed_for(dataset, batch_size=batch_size, rank=rank, world_size=size, shuffle=False)
        feeds = [even, prescribed(dataset, shares, rank)]
        found += [
            evaluate(model, feed, loss_fn=F.cross_entropy, metrics=NAMES, device=CPU)
            for feed in feeds
        ]
    return found


def alone(rows):
    """The same in one process, straight from the definition."""
    inputs, targets = data(rows).tensors
    with torch.no_grad():
        scores = model_of().eval()(inputs)
    place = (scores > scores.gather(1, targets[:, None])).sum(1) + 1
    return {
        "loss": float(F.cross_entropy(scores.double(), targets)),
        "recall@3": float((place <= 3).double().mean()),
        "accuracy": float((place == 1).double().mean()),
        "ndcg@3": float(((place <= 3) / torch.log2(place.double() + 1)).mean()),
    }


def test_every_rank_gets_the_figures_of_one_process():
    cases = [
        (17, 5, [[4, 1, 1], [11, 0, 0]]),
        (1, 5, [[0, 0, 1]]),  # fewer rows than ranks: one rank has them all
        (12, 12, [[0, 0, 12], [0, 0, 0]]),
    ]
    found = run_ranks(over_ranks, 3, cases, show=False)
    assert all(figures == found[0] for figures in found)  # to the last bit
    expected = [alone(rows) for rows, _, _ in cases for _ in range(2)]
    for figures, wanted in zip(found[0], expected, strict=True):
        assert list(figures) == ["loss", *NAMES]
        assert figures["loss"] == pytest.approx(wanted["loss"], rel=1e-6)
        for name in NAMES:
            assert figures[name] == pytest.approx(wanted[name], abs=1e-12)


def test_modes_gradients_and_random_numbers_are_as_they_were():
    model = model_of().train()
    model[1].eval()  # this part was frozen by hand
    modes = [module.training for module in model.modules()]
    feed = feed_for(data(9), batch_size=4, shuffle=False)

    def next_numbers():
        return torch.rand(1).item(), random.random()

    torch.manual_seed(5), random.seed(5)
    expected = next_numbers()
    torch.manual_seed(5), random.seed(5)
    seen = []

    def loss_fn(scores, targets):
        seen.append((scores, next_numbers()))
        return F.cross_entropy(scores, targets)

    evaluate(model, feed, loss_fn=loss_fn, metrics=("accuracy",), device=CPU)
    assert next_numbers() == expected
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()
    assert not any(scores.requires_grad for scores, _ in seen)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_evaluation_takes_its_inputs_as_a_training_step_does(monkeypatch):
    def place(self, batch):
        return 0 * batch.inputs, batch.targets

    monkeypatch.setattr(Single, "place", place)
    rows = data(17)
    trainer = Trainer(model_of(), TrainConfig(mode="single"), rows, rows)
    inputs, targets = rows.tensors
    zeros = feed_for(TensorDataset(0 * inputs, targets), batch_size=17, shuffle=False)
    found = evaluate(model_of(), zeros, loss_fn=F.cross_entropy, metrics=("accuracy",), device=CPU)
    assert trainer.evaluate() == pytest.approx(found)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_gpu_evaluates_as_the_cpu_does(backend):
    def on_a_gpu():
        rank, size = dist.get_rank(), dist.get_world_size()
        feed = feed_for(data(17), batch_size=5, rank=rank, world_size=size, shuffle=False)
        device = torch.device("cuda:0")
        model = model_of().to(device)
        return evaluate(model, feed, loss_fn=F.cross_entropy, metrics=NAMES, device=device)

    found = run_ranks(on_a_gpu, 2 if backend == "gloo" else 1, backend=backend, show=False)
    assert found[0] == pytest.approx(alone(17), rel=1e-5)
    assert all(figures == found[0] for figures in found)


def rows(count, *, classes=13, seed=0):
    """Random scores (count, classes), the right one somewhat higher, and the right classes."""
    torch.manual_seed(seed)
    scores, targets = torch.randn(count, classes), torch.randint(0, classes, (count,))
    return scores + 0.7 * torch.nn.functional.one_hot(targets, classes), targets


def figures(names, *batches):
    return figures_of(Metrics(names), *batches)


def figures_of(metrics, *batches):
    for scores, targets in batches:
        metrics.update(scores, targets)
    return metrics.figures(metrics.counts.flatten().tolist())


@pytest.mark.slow
def test_recall_ndcg_and_accuracy_are_those_of_torchmetrics():
    torchmetrics = importlib.import_module("torchmetrics")  # takes seconds
    scores, targets = rows(200)
    queries = torch.arange(200).repeat_interleave(13)
    relevant = torch.nn.functional.one_hot(targets, 13).flatten()
    positive = scores.double().softmax(dim=-1).flatten()  # its recall finds nothing below 0
    theirs = {
        "recall": torchmetrics.retrieval.RetrievalRecall,
        "ndcg": torchmetrics.retrieval.RetrievalNormalizedDCG,
    }
    for name, k in itertools.product(theirs, (1, 5)):
        [found] = figures([f"{name}@{k}"], (scores, targets)).values()
        expected = theirs[name](top_k=k)(positive, relevant, indexes=queries)
        assert found == pytest.approx(float(expected), rel=1e-6)
    own = Metrics(
        {"own": torchmetrics.Accuracy(task="multiclass", num_classes=13, average="micro")}
    )
    named = figures(["accuracy"], (scores, targets))
    assert figures_of(own, (scores, targets))["own"] == pytest.approx(named["accuracy"])


def test_places_up_to_k_count_and_none_after_it():
    scores = torch.tensor([[4.0, 3.0, 2.0, 1.0]]).expand(4, 4)
    targets = torch.arange(4)  # the right class stands at place 1, 2, 3 and 4
    found = figures(["accuracy", "recall@3", "ndcg@3"], (scores, targets))
    assert found["accuracy"] == 1 / 4
    assert found["recall@3"] == 3 / 4
    assert found["ndcg@3"] == pytest.approx((1 + 1 / math.log2(3) + 1 / 2) / 4)


@pytest.mark.parametrize("name", ["acuracy", "recall", "recall@0"])
def test_a_name_that_is_not_known_is_refused_with_those_that_are(name):
    with pytest.raises(ValueError, match=r"accuracy\b.*recall@k\b.*ndcg@k") as refused:
        Metrics(["accuracy", name])
    assert repr(name) in str(refused.value)


def test_targets_that_do_not_fit_the_scores_are_refused():
    with pytest.raises(ValueError, match=r"\(3, 4\).*\(3,\).*\(3, 1\)"):
        figures(["accuracy"], (torch.zeros(3, 4), torch.zeros(3, 1, dtype=torch.int64)))


@pytest.mark.parametrize("ignored", [-100, 5])
def test_rows_that_are_ignored_do_not_count(ignored):
    scores, targets = rows(20)
    names = ["accuracy", "recall@3", "ndcg@3"]
    kept = torch.arange(20) % 4 > 0
    kept &= targets != ignored
    batch = scores, targets.where(kept, ignored)
    assert figures_of(Metrics(names, ignored=ignored), batch) == figures(
        names, (scores[kept], targets[kept])
    )
    none = figures(names, (scores, torch.full((20,), -100)))
    assert all(math.isnan(figure) for figure in none.values())
