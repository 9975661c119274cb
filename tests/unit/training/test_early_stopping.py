"""When training stops early, which epoch was the best, and that no rank decides by itself."""

import math

import pytest
from torch import distributed as dist

from multigpu import run_ranks
from multigpu.training.history import EarlyStopping

NAN = math.nan


def watched(figures, *, patience=2, monitor="loss"):
    """After each figure: is it the best, is it time to stop."""
    stopping = EarlyStopping(patience, monitor=monitor)
    return [(stopping.update({monitor: figure}), stopping.should_stop) for figure in figures]


def test_a_loss_is_better_when_it_is_smaller():
    best, stop = zip(*watched([3.0, 2.0, 2.5, 1.0, 1.0, 1.5]), strict=True)
    assert best == (True, True, False, True, False, False)  # an equal figure is not better
    assert stop == (False, False, False, False, False, True)


@pytest.mark.parametrize("monitor", ["accuracy", "recall@10", "ndcg@10"])
def test_any_other_figure_is_better_when_it_is_larger(monitor):
    best, stop = zip(*watched([0.1, 0.4, 0.3, 0.2], monitor=monitor), strict=True)
    assert best == (True, True, False, False)
    assert stop == (False, False, False, True)


@pytest.mark.parametrize("monitor", ["loss", "accuracy"])
def test_nan_is_never_the_best_and_counts_as_no_improvement(monitor):
    assert watched([NAN, 0.5, NAN, NAN], monitor=monitor) == [
        (False, False),
        (True, False),
        (False, False),
        (False, True),
    ]


def test_without_patience_it_never_stops_and_knows_the_best():
    results = watched([1.0, *[2.0] * 50, 0.5], patience=None)
    assert not any(stop for _, stop in results)
    assert [best for best, _ in results] == [True, *[False] * 50, True]


@pytest.mark.parametrize("patience", [0, 1])
def test_the_least_patience_stops_at_the_first_epoch_that_is_no_better(patience):
    assert [stop for _, stop in watched([2.0, 1.0, 1.1], patience=patience)] == [False, False, True]


def test_it_goes_on_from_its_state():
    before = EarlyStopping(2, monitor="loss")
    for figure in (1.0, 2.0):
        before.update({"loss": figure})
    after = EarlyStopping(2, monitor="loss")
    after.load_state_dict(before.state_dict())
    assert not after.update({"loss": 1.5})
    assert after.should_stop


def test_a_figure_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"'recall@10'.*loss, accuracy"):
        EarlyStopping(1, monitor="recall@10").update({"loss": 1.0, "accuracy": 0.5})
    with pytest.raises(ValueError, match=r"patience=-1"):
        EarlyStopping(-1, monitor="loss")


def test_all_ranks_do_what_rank_0_decides():
    def own_opinion():
        stopping = EarlyStopping(2, monitor="loss")
        rising = [[3.0, 2.0, 2.5, 2.6], [1.0, 2.0, 3.0, 0.5], [NAN, NAN, NAN, NAN]]
        decided = []
        for figure in rising[dist.get_rank()]:
            decided.append((stopping.update({"loss": figure}), stopping.should_stop))
        return decided, stopping.state_dict()

    found = run_ranks(own_opinion, 3, show=False)
    expected = [(True, False), (True, False), (False, False), (False, True)]
    assert list(found) == [(expected, {"best": 2.0, "epochs_without_better": 2})] * 3
