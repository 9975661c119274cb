"""Accuracy, recall@k and NDCG@k of one right class per row, against torchmetrics' own."""

import math

import pytest
import torch
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.retrieval import RetrievalNormalizedDCG, RetrievalRecall

from multigpu.training.evaluate import Metrics


def rows(count, *, classes=13, seed=0):
    """Random scores (count, classes), the right one somewhat higher, and the right classes."""
    torch.manual_seed(seed)
    scores, targets = torch.randn(count, classes), torch.randint(0, classes, (count,))
    return scores + 0.7 * torch.nn.functional.one_hot(targets, classes), targets


def figures(names, *batches):
    metrics = Metrics(names)
    for scores, targets in batches:
        metrics.update(scores, targets)
    return metrics.figures()


@pytest.mark.parametrize("k", [1, 2, 5, 13])
def test_recall_and_ndcg_are_those_of_torchmetrics(k):
    scores, targets = rows(200)
    queries = torch.arange(200).repeat_interleave(13)
    relevant = torch.nn.functional.one_hot(targets, 13).flatten()
    positive = scores.double().softmax(dim=-1).flatten()  # its recall finds nothing below 0
    found = figures([f"recall@{k}", f"ndcg@{k}"], (scores, targets))
    for name, theirs in {"recall": RetrievalRecall, "ndcg": RetrievalNormalizedDCG}.items():
        expected = theirs(top_k=k)(positive, relevant, indexes=queries)
        assert found[f"{name}@{k}"] == pytest.approx(float(expected), rel=1e-6)


def test_accuracy_is_that_of_torchmetrics():
    scores, targets = rows(200)
    expected = MulticlassAccuracy(num_classes=13, average="micro")(scores, targets)
    assert figures(["accuracy"], (scores, targets))["accuracy"] == pytest.approx(float(expected))


def test_a_row_counts_the_same_in_a_small_batch_and_in_a_large_one():
    scores, targets = rows(20)
    names = ["accuracy", "recall@3", "ndcg@3"]
    parts = zip(scores.split([1, 16, 3]), targets.split([1, 16, 3]), strict=True)
    assert figures(names, *parts) == figures(names, (scores, targets))


def test_places_up_to_k_count_and_none_after_it():
    scores = torch.tensor([[4.0, 3.0, 2.0, 1.0]]).expand(4, 4)
    targets = torch.arange(4)  # the right class stands at place 1, 2, 3 and 4
    found = figures(["accuracy", "recall@3", "ndcg@3"], (scores, targets))
    assert found["accuracy"] == 1 / 4
    assert found["recall@3"] == 3 / 4
    assert found["ndcg@3"] == pytest.approx((1 + 1 / math.log2(3) + 1 / 2) / 4)


def test_each_token_of_a_sequence_counts_as_a_row():
    scores, targets = rows(24)
    names = ["accuracy", "ndcg@4"]
    in_blocks = scores.reshape(4, 6, 13), targets.reshape(4, 6)
    assert figures(names, in_blocks) == figures(names, (scores, targets))


def test_equal_scores_stand_in_the_order_of_topk():
    scores, targets = torch.zeros(6, 6), torch.arange(6)  # nothing has been learnt
    first = scores[0].topk(2).indices
    assert figures(["recall@2"], (scores, targets))["recall@2"] == pytest.approx(2 / 6)
    assert figures(["recall@2"], (scores[:1], first[:1]))["recall@2"] == 1


def test_a_model_that_says_nan_is_right_nowhere():
    scores, targets = torch.full((50, 4), float("nan")), torch.arange(50) % 4
    found = figures(["accuracy", "recall@4", "ndcg@4"], (scores, targets))
    assert set(found.values()) == {0.0}


def test_scores_of_16_bits_are_counted():
    scores, targets = torch.eye(5, dtype=torch.bfloat16), torch.arange(5)
    assert figures(["accuracy", "ndcg@5"], (scores, targets)) == {"accuracy": 1.0, "ndcg@5": 1.0}


@pytest.mark.parametrize("name", ["acuracy", "recall", "recall@", "recall@0", "ndcg@-1", "f1@3"])
def test_a_name_that_is_not_known_is_refused_with_those_that_are(name):
    with pytest.raises(ValueError, match=r"accuracy\b.*recall@k\b.*ndcg@k") as refused:
        Metrics(["accuracy", name])
    assert repr(name) in str(refused.value)


def test_more_places_than_classes_are_refused():
    with pytest.raises(ValueError, match=r"\b10\b.*\b4\b.*k=4\b"):
        figures(["recall@10"], (torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64)))


def test_targets_that_do_not_fit_the_scores_are_refused():
    with pytest.raises(ValueError, match=r"\(3, 4\).*\(3,\).*\(3, 1\)"):
        figures(["accuracy"], (torch.zeros(3, 4), torch.zeros(3, 1, dtype=torch.int64)))
