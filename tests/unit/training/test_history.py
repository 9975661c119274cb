"""What a run shows: its table, the GPUs' figures, the best epoch, the progress bar."""

import io
import math
import os
import sys
import threading

import pytest
import torch
from nvitop.api import NA, Device
from torch import distributed as dist

from multigpu import run_ranks, virtual_gpus
from multigpu.training.early_stopping import EarlyStopping
from multigpu.training.history import History, ProgressBar, gpu_figures


def history(epochs=2):
    made = History()
    for epoch in range(1, epochs + 1):
        made.add(
            {"epoch": epoch, "loss": 1 / 3 / epoch, **({"gpu0_gib": 2.5} if epoch > 1 else {})}
        )
    return made


def test_the_frame_has_a_row_per_epoch_and_every_column():
    frame = history(3).frame()
    assert list(frame.columns) == ["epoch", "loss", "gpu0_gib"]
    assert list(frame["epoch"]) == [1, 2, 3]
    assert math.isnan(frame["gpu0_gib"][0])
    assert history(3).last == {"epoch": 3, "loss": 1 / 9, "gpu0_gib": 2.5}
    assert History().last == {}
    assert History().frame().empty


def test_the_file_holds_every_digit(tmp_path):
    import pandas

    path = tmp_path / "runs" / "history.csv"
    history().to_csv(path)
    # 1e-15: some versions of pandas read the last bit of a float wrong
    pandas.testing.assert_frame_equal(pandas.read_csv(path), history().frame(), rtol=1e-15, atol=0)
    assert [each.name for each in path.parent.iterdir()] == ["history.csv"]


def test_a_file_that_could_not_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "history.csv"
    history(1).to_csv(path)
    before = path.read_text()

    def full_disk(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        history(2).to_csv(path)
    assert path.read_text() == before
    assert [each.name for each in tmp_path.iterdir()] == ["history.csv"]


def test_it_goes_on_from_its_state():
    before, after = history(), History()
    after.load_state_dict(before.state_dict())
    after.add({"epoch": 3})
    assert [row["epoch"] for row in after.rows] == [1, 2, 3]
    assert len(before) == 2  # nothing is shared with the state


def test_it_is_shown_small():
    assert str(history()).splitlines() == [
        " epoch    loss  gpu0_gib",
        "     1 0.33333          ",
        "     2 0.16667       2.5",
    ]
    assert len(str(history(500)).splitlines()) <= 15
    assert "no epoch" in str(History())
    assert "<td>0.33333</td>" in history()._repr_html_()
    assert History()._repr_html_() == f"<p>{History()}</p>"


class Pretended:
    """An nvitop Device as far as it is asked."""

    name = staticmethod(lambda: "NVIDIA H100 80GB HBM3")
    memory_total = staticmethod(lambda: 80 * 2**30)
    temperature = staticmethod(lambda: 50)
    power_usage = staticmethod(lambda: 210_400)
    processes = staticmethod(dict)

    def __init__(self, index, memory, busy):
        self.physical_index = index
        self.memory_used = lambda: memory
        self.gpu_utilization = lambda: busy


def test_each_gpu_tells_its_memory_and_how_busy_it_is(monkeypatch):
    devices = [Pretended(0, 5 * 2**30, 37), Pretended(2, NA, 100)]
    monkeypatch.setattr(Device, "all", classmethod(lambda cls: devices))
    assert gpu_figures() == {"gpu0_gib": 5.0, "gpu0_busy": 37, "gpu2_busy": 100}


def test_virtual_gpus_tell_their_memory():
    with virtual_gpus(2):
        kept = torch.zeros(2**18, device="cuda:1")  # 1 MiB
        assert gpu_figures() == {"gpu0_gib": 0.0, "gpu1_gib": 1 / 1024}
        del kept


def test_without_a_gpu_there_are_no_figures(monkeypatch):
    monkeypatch.setattr(Device, "all", classmethod(lambda cls: []))
    assert gpu_figures() == {}


@pytest.mark.gpu
def test_a_real_gpu_tells_both():
    assert {"gpu0_gib", "gpu0_busy"} <= set(gpu_figures())


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


def test_early_stopping_goes_on_from_its_state():
    before = EarlyStopping(2, monitor="loss")
    for figure in (1.0, 2.0):
        before.update({"loss": figure})
    after = EarlyStopping(2, monitor="loss")
    after.load_state_dict(before.state_dict())
    assert not after.update({"loss": 1.5})
    assert after.should_stop


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


class Terminal(io.StringIO):
    """A standard error that says it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def errors(monkeypatch):
    """``errors(file)`` makes ``file`` the standard error."""

    def replace(file):
        monkeypatch.setattr(sys, "stderr", file)
        return file

    return replace


def train(**options):
    with ProgressBar(4, **options) as bar:
        for _ in range(4):
            bar.figures(loss=0.123456, accuracy=0.5)
            bar.update(1)


def test_a_terminal_sees_the_bar_and_the_latest_figures(errors):
    shown = errors(Terminal())
    train()
    last = shown.getvalue().rpartition("\r")[2]
    assert "4/4" in last
    assert "loss=0.1235, accuracy=0.5" in last


def test_elsewhere_it_is_quiet_unless_asked(errors):
    shown = errors(io.StringIO())
    train()
    assert shown.getvalue() == ""
    train(shown=True)
    assert "4/4" in shown.getvalue()
    assert "\x1b" not in shown.getvalue()  # plain text


def test_other_ranks_show_nothing_even_when_asked(errors):
    shown = errors(Terminal())
    train(shown=True, is_main=False)
    train(shown=False)
    assert shown.getvalue() == ""


def test_a_run_that_goes_on_counts_what_was_done(errors):
    shown = errors(Terminal())
    with ProgressBar(10, initial=7) as bar:
        bar.update(1)
    assert " 7/10" in shown.getvalue().split("\r")[1]
    assert " 8/10" in shown.getvalue().rpartition("\r")[2]


class Breaks(Terminal):
    """A terminal that is closed after the first words."""

    def write(self, text):
        if self.tell():
            raise BrokenPipeError("the reader is gone")
        return super().write(text)


@pytest.mark.parametrize("kind", ["closed", "none", "breaks"])
def test_training_goes_on_when_standard_error_is_gone(errors, kind):
    file = {"closed": Terminal(), "none": None, "breaks": Breaks()}[kind]
    if kind == "closed":
        file.close()
    errors(file)
    train(shown=True)
    train()


def test_standard_error_may_be_closed_while_the_bar_is_shown(errors):
    shown = errors(Terminal())
    with ProgressBar(4) as bar:
        bar.update(1)
        shown.close()
        bar.figures(loss=1.0)
        bar.update(3)


def test_an_error_in_the_training_is_not_hidden(errors):
    errors(Terminal())
    with pytest.raises(ValueError, match="of the model"), ProgressBar(4):
        raise ValueError("of the model")


def test_it_starts_no_thread(errors):
    errors(Terminal())
    before = threading.active_count()
    with ProgressBar(4) as bar:
        bar.update(1)
        assert threading.active_count() == before
