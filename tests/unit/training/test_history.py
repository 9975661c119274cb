"""What a run shows: its table, the GPUs' figures, the best epoch, the progress bar."""

import io
import math
import sys

import pytest
import torch

from multigpu import virtual_gpus
from multigpu.training.history import EarlyStopping, History, ProgressBar, gpu_figures


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


def test_virtual_gpus_tell_their_memory():
    with virtual_gpus(2):
        kept = torch.zeros(2**18, device="cuda:1")  # 1 MiB
        assert gpu_figures() == {"gpu0_gib": 0.0, "gpu1_gib": 1 / 1024}
        del kept


@pytest.mark.gpu
def test_a_real_gpu_tells_both():
    assert {"gpu0_gib", "gpu0_busy"} <= set(gpu_figures())


NAN = math.nan


@pytest.mark.parametrize(
    ("monitor", "patience", "figures", "best", "stops_at"),
    [
        # An equal figure is not better, NaN never is, and neither counts as an improvement.
        ("loss", 2, [3.0, 2.0, 2.5, 1.0, 1.0, 1.5], [0, 1, 3], 5),
        ("recall@10", 2, [0.1, 0.4, 0.3, 0.2], [0, 1], 3),
        ("loss", 2, [NAN, 0.5, NAN, NAN], [1], 3),
        ("accuracy", 2, [NAN, 0.5, NAN, NAN], [1], 3),
        ("mae", 1, [2.0, 1.0, 1.1], [0, 1], 2),
        ("absolute_error", 1, [2.0, 1.0, 1.1], [0, 1], 2),
        ("RMSE", 1, [2.0, 1.0, 1.1], [0, 1], 2),
        ("MeanAbsoluteError", 1, [2.0, 1.0, 1.1], [0, 1], 2),
        ("lossless", 1, [1.0, 2.0, 1.1], [0, 1], 2),
        ("loss", 0, [2.0, 1.0, 1.1], [0, 1], 2),
        ("loss", 1, [2.0, 1.0, 1.1], [0, 1], 2),
    ],
)
def test_the_best_epoch_is_found_and_training_stops_after_it(
    monitor, patience, figures, best, stops_at
):
    stopping = EarlyStopping(patience, monitor=monitor)
    found = [(stopping.update({monitor: figure}), stopping.should_stop) for figure in figures]
    assert [number for number, (is_best, _) in enumerate(found) if is_best] == best
    assert [number for number, (_, stop) in enumerate(found) if stop] == [stops_at]


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


@pytest.mark.parametrize("kind", ["closed", "none"])
def test_training_goes_on_when_standard_error_is_gone(errors, kind):
    file = errors({"closed": Terminal(), "none": None}[kind])
    if file:
        file.close()
    train(shown=True)
    train()
