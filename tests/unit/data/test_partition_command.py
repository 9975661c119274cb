"""``multigpu partition``: the arithmetic, the file, and what cannot be."""

import os
import re
import signal
import socket
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from multigpu.cli import main
from multigpu.data import parquet
from multigpu.data.parquet import group_sizes


def row_groups_of(path):
    return group_sizes(pq.read_metadata(path))


@pytest.fixture
def frame():
    import pandas as pd

    rows = 1000
    return pd.DataFrame(
        {
            "number": range(rows),
            "text": [f"row {i}" for i in range(rows)],
            "kind": pd.Categorical(["a", "b", "c", "d"] * (rows // 4)),
            "some": [None, 0.5] * (rows // 2),
            "list": [[1, 2], []] * (rows // 2),
        },
        index=pd.date_range("2013-01-01", periods=rows, freq="h"),
    )


@pytest.fixture
def file(tmp_path, frame):
    path = tmp_path / "table.parquet"
    frame.to_parquet(path, compression="gzip", row_group_size=300)
    return path


def test_a_file_gets_as_many_row_groups_as_asked_and_nothing_else_changes(file, frame, capsys):
    import pandas as pd

    os.chmod(file, 0o640)
    assert main(["partition", str(file), "--partitions", "8"]) == 0
    assert row_groups_of(file) == (125,) * 8
    pd.testing.assert_frame_equal(pd.read_parquet(file), frame, check_freq=False)
    assert pq.ParquetFile(file).metadata.row_group(3).column(0).compression == "GZIP"
    assert file.stat().st_mode & 0o777 == 0o640
    assert os.listdir(file.parent) == [file.name]
    printed = capsys.readouterr().out
    assert printed.count(str(file)) == 2
    assert "to_parquet(row_group_size=125)" in printed
    lines = printed.replace(str(file), "").splitlines()
    assert [re.findall(r"\d+(?:,\d{3})*", line) for line in lines] == [
        ["1,000", "4", "3", "300", "1", "100"],
        ["1,000", "8", "125"],
        ["1,000", "125", "8", "125"],
        ["8", "125"],
        ["1", "2", "4", "8"],  # the numbers of ranks that this file serves evenly
    ]


def test_asked_to_end_it_leaves_the_file_as_it_was_and_nothing_beside_it(file, monkeypatch):
    before = file.read_bytes()

    def half(path, *_, **__):
        path.write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGTERM)  # as a scheduler does

    monkeypatch.setattr(parquet.pq, "ParquetWriter", half)
    assert main(["partition", str(file), "--partitions", "8"]) == 130
    assert os.listdir(file.parent) == [file.name]
    assert file.read_bytes() == before


def test_what_a_killed_writer_left_goes_with_the_next_one(file):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here, elsewhere = f".{file.name}.{socket.gethostname()}", f".{file.name}.elsewhere"
    stay = [f"{here}.{os.getppid()}.partial", f"{elsewhere}.{ended.pid}.partial"]
    stay.append(f"{here}.{2**40}.partial")  # no process has this number
    for left in (f"{here}.{ended.pid}.partial", *stay):
        file.with_name(left).write_bytes(b"half")
    assert main(["partition", str(file), "--partitions", "8"]) == 0
    assert set(os.listdir(file.parent)) == {file.name, *stay}


def test_a_row_group_size_leaves_the_last_one_short_as_pandas_does(file, frame, capsys):
    other = file.with_name("other.parquet")
    assert main(["partition", str(file), "--row-group-size", "130", "--output", str(other)]) == 0
    assert row_groups_of(other) == (130,) * 7 + (90,)
    assert row_groups_of(file) == (300, 300, 300, 100)
    frame.to_parquet(file, row_group_size=130)
    assert row_groups_of(file) == row_groups_of(other)
    printed = capsys.readouterr().out
    assert re.search(r"\b1,000\D*\b130\D*\b8 row groups", printed)
    assert re.search(r"\b1 rank\b", printed)


def test_a_number_that_no_size_gives_is_met_with_two_sizes(tmp_path, capsys):
    import pandas as pd

    path = tmp_path / "ten.parquet"
    pd.DataFrame({"a": range(10)}).to_parquet(path)
    assert main(["partition", str(path), "--partitions", "8"]) == 0
    assert row_groups_of(path) == (2, 2, 1, 1, 1, 1, 1, 1)
    printed = capsys.readouterr().out
    assert re.search(r"\b10 / 2\D*\b5\D*\b8\b", printed)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--partitions", "1001"], r"partitions=1001\b.*\b1,000 rows"),
        (["--partitions", "0"], "partitions=0"),
        (["--row-group-size", "-1"], "row_group_size=-1"),
    ],
)
def test_what_cannot_be_is_said_and_the_file_stays(file, capsys, options, says):
    before = file.read_bytes()
    assert main(["partition", str(file), *options]) == 1
    assert re.search(says, capsys.readouterr().err)
    assert file.read_bytes() == before


@pytest.mark.parametrize("content", [None, b"", b"no parquet"])
def test_a_missing_or_broken_file_is_said(tmp_path, capsys, content):
    path = tmp_path / "mine.parquet"
    if content is not None:
        path.write_bytes(content)
    assert main(["partition", str(path), "--partitions", "2"]) == 1
    assert str(path) in capsys.readouterr().err


def test_the_flights_are_made_where_they_are_missing(tmp_path, monkeypatch, capsys):
    import pandas as pd

    import multigpu.data

    def small(path):
        pd.DataFrame({"a": range(20)}).to_parquet(path)

    monkeypatch.setattr(multigpu.data, "write_flights", small, raising=False)
    path = tmp_path / "flights.parquet"
    assert main(["partition", str(path), "--partitions", "4"]) == 0
    assert row_groups_of(path) == (5, 5, 5, 5)
    assert "does not exist yet" in capsys.readouterr().out
    assert os.listdir(tmp_path) == [path.name]
