"""What cannot be trained on is refused: with the file, the column, and what to do."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multigpu.data import PartitionedFile
from multigpu.data.feeds import feed_for


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"lost\.parquet"):
        PartitionedFile(tmp_path / "lost.parquet", inputs=["a"], target="b")


@pytest.mark.parametrize("sizes", [[], [0]])
def test_a_file_without_rows_is_refused(make, sizes):
    with pytest.raises(ValueError, match="no rows"):
        make(sizes)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"inputs": ["nmber"]}, "'nmber'.*number, half, target"),
        ({"target": "label"}, "'label'.*number, half, target"),
        ({"inputs": "number"}, "inputs='number'.*list"),
        ({"inputs": []}, r"inputs=\[\].*list"),
        ({"inputs": ["number", "target"]}, "target='target'.*inputs"),
    ],
)
def test_wrong_columns_are_refused_and_named(make, options, says):
    with pytest.raises(ValueError, match=says):
        make([4], **options)


def with_column(path, values, **options):
    table = pa.table({"a": values, "target": range(len(values))})
    pq.write_table(table, path, **options)
    return PartitionedFile(path, inputs=["a"], target="target")


def test_text_is_refused_with_the_way_to_numbers(tmp_path):
    with pytest.raises(ValueError, match=r"'a'.* string\b.*'a'.*cat\.codes"):
        with_column(tmp_path / "a.parquet", ["x", "y"])


def test_missing_values_are_refused_when_they_are_met(tmp_path):
    data = with_column(tmp_path / "a.parquet", [1, None, 2])
    with pytest.raises(ValueError, match=r"'a'.*\b1 values are missing.*fillna"):
        list(data.feed(batch_size=2).batches(0))


def test_a_file_that_is_rewritten_under_way_is_noticed(make, numbers):
    data = make([10, 10])
    numbers(data.path, [5, 15])
    with pytest.raises(ValueError, match=r"numbers\.parquet .*rewritten"):
        list(data.feed(batch_size=2).batches(0))


def test_a_damaged_file_is_named(make):
    data = make([1000, 1000])
    content = bytearray(data.path.read_bytes())
    content[4:400] = bytes(396)
    data.path.write_bytes(content)
    with pytest.raises(ValueError, match=r"numbers\.parquet cannot be read"):
        list(data.feed(batch_size=500, shuffle=False).batches(0))


@pytest.mark.parametrize("value", [float("nan"), 1e300])
def test_numbers_that_float32_cannot_hold_are_refused(tmp_path, value):
    path = tmp_path / "numbers.parquet"
    pq.write_table(pa.table({"x": [0.5, value, 2.0], "y": [0, 1, 0]}), path)
    feed = PartitionedFile(path, inputs=["x"], target="y").feed(batch_size=3)
    with pytest.raises(ValueError, match=r"'x'.*\b1 values.*float32"):
        list(feed.batches(0))


def test_workers_are_refused_because_a_file_is_read_without_them(make):
    with pytest.raises(ValueError, match="workers=2"):
        feed_for(make([4]), batch_size=2, workers=2)
