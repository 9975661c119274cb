"""The table of a training run: as a frame, as a file, in a terminal and in a notebook."""

import math
import os

import pandas
import pytest

from multigpu.training.history import History


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
    path = tmp_path / "runs" / "history.csv"
    history().to_csv(path)
    pandas.testing.assert_frame_equal(pandas.read_csv(path), history().frame(), check_exact=True)
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
