"""Feeding from row groups against reading the whole file: rows per second, and peak memory.

Run with `make bench`. Every candidate reads one epoch of the same file, shuffled, in a fresh
process, and touches every batch. Peak memory is what that process needed beyond its imports. Rows
per second are compared round by round, because a busy machine slows down all of them alike.
Nothing is asserted about times.
"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

COLUMNS, BATCH = 32, 1024
ROWS_PER_GROUP = 25_000
ROUNDS = {4: 1, 8: 1, 16: 3}  # by row groups in the file: memory varies less than time
OURS = "PartitionedFile, 1 rank"

READ_ALL = """
    from torch.utils.data import DataLoader, TensorDataset
    inputs = torch.from_numpy(table[names].to_numpy())
    data = TensorDataset(inputs, torch.from_numpy(table["target"].to_numpy(copy=True)))
"""
BATCHES = {
    OURS: """
    from multigpu.data import PartitionedFile
    feed = PartitionedFile(path, inputs=names, target="target").feed(batch_size=batch)
    batches = ((b.inputs, b.targets) for b in feed.batches(0))
    """,
    "PartitionedFile, rank 0 of 4": """
    from multigpu.data import PartitionedFile
    data = PartitionedFile(path, inputs=names, target="target")
    feed = data.feed(batch_size=batch, rank=0, world_size=4)
    batches = ((b.inputs, b.targets) for b in feed.batches(0))
    """,
    "pandas, all rows; DataLoader": "table = pd.read_parquet(path)"
    + READ_ALL
    + """
    batches = DataLoader(data, batch_size=batch, shuffle=True)
    """,
    "pyarrow, all rows; RowFeed": "table = pq.read_table(path).to_pandas()"
    + READ_ALL
    + """
    from multigpu.data.feeds import feed_for
    batches = ((b.inputs, b.targets) for b in feed_for(data, batch_size=batch).batches(0))
    """,
}
PROGRAM = """
import json, resource, sys, time
import pandas as pd, pyarrow.parquet as pq, torch
import multigpu.data.parquet
torch.set_num_threads(1)
path, columns, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
names = [f"c{{i}}" for i in range(columns)]

def peak():
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB here
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def epoch():
    {batches}
    rows = 0
    for inputs, targets in batches:
        assert inputs.shape == (len(targets), columns)
        rows += len(targets)
    return rows

before, start = peak(), time.perf_counter()
rows = epoch()
print(json.dumps(dict(rows=rows, seconds=time.perf_counter() - start, bytes=peak() - before)))
"""


def write(path: Path, groups: int) -> Path:
    """Random numbers, which cannot be compressed, in row groups of one size."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    chance = np.random.default_rng(0)
    names = [*(f"c{i}" for i in range(COLUMNS)), "target"]
    schema = pa.schema([(name, pa.int64()) for name in names])
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for _ in range(groups):
            columns = [chance.integers(0, 2**40, ROWS_PER_GROUP) for _ in names]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=ROWS_PER_GROUP)
    return path


def measure(path: Path, batches: str) -> dict[str, float]:
    """One epoch in a fresh process."""
    program = PROGRAM.format(batches=batches.strip())
    command = [sys.executable, "-c", program, str(path), str(COLUMNS), str(BATCH)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("groups", ROUNDS)
def test_loader(tmp_path, groups):
    path = write(tmp_path / "numbers.parquet", groups)
    rounds = [
        {name: measure(path, code) for name, code in BATCHES.items()} for _ in range(ROUNDS[groups])
    ]
    rows = groups * ROWS_PER_GROUP
    size = rows * (COLUMNS + 1) * 8
    print(f"\n{rows:,} rows in {groups} row groups, {size / 2**20:.0f} MiB as int64")
    print(f"  {'':32}{'rows/s':>12}{'of ' + OURS:>30}{'peak':>12}{'of all rows':>14}")
    for name in BATCHES:
        speeds = [one[name]["rows"] / one[name]["seconds"] for one in rounds]
        ours = [one[OURS]["rows"] / one[OURS]["seconds"] for one in rounds]
        ratio = median(a / b for a, b in zip(speeds, ours, strict=True))
        peak = median(one[name]["bytes"] for one in rounds)
        print(
            f"  {name:32}{median(speeds):12,.0f}{ratio:28.2f} ×"
            f"{peak / 2**20:8.0f} MiB{peak / size:12.2f} ×"
        )
