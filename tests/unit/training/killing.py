"""Training runs that are killed at random moments and started again until they are done.

    python tests/unit/training/killing.py SEED single ddp-partitions

kills a training run with SIGKILL (one rank of it, or all), starts it again, and so on. Then it
compares the checkpoints with those of the same run left alone, bit for bit, and prints a JSON list
of the differences for each case. test_resume.py calls it.

Each start is a fork of this process, which has imported everything and computed nothing.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy
import torch
import torch._dynamo  # by the optimizers
import torch.distributed.checkpoint
import torch.distributed.fsdp
from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.utils.data import TensorDataset

from multigpu.data import PartitionedFile
from multigpu.training import TrainConfig, Trainer

KILLS, ROWS, BATCH, COLUMNS = 2, 106, 12, 12
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a disk's fsync would take longer,
FSYNC = 0.003  # and here takes as many seconds, so that kills strike within it, too
# What a run that was killed may have otherwise than one left alone.
OTHERWISE = ("seconds", "rows_per_second", "saved", "config", "digests")


@dataclass(frozen=True)
class Case:
    """What is trained, and on how many ranks."""

    mode: str
    ranks: int = 1
    partitions: bool = False  # rows from a Parquet file instead of memory
    parts: int = 2  # one row alone is too few for BatchNorm
    checkpoints: str = "full"


CASES = {
    "single": Case("single"),
    "ddp-partitions": Case("ddp", ranks=2, partitions=True),
    "zero3-sharded": Case("zero3", ranks=3, parts=1, checkpoints="sharded"),
}


def train(case: Case, folder: Path) -> None:
    """One start of the run: a small model that draws from every generator there is."""
    table, target = random_rows()
    data: Any = TensorDataset(table, target)
    if case.partitions:
        names = [str(column) for column in range(COLUMNS)]
        data = PartitionedFile(folder.parent / "rows.parquet", inputs=names, target="target")
    model = nn.Sequential(
        nn.Linear(COLUMNS, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.4), nn.Linear(24, 4)
    )
    config = TrainConfig(
        mode=case.mode,
        batch_size=BATCH,
        accumulation_steps=case.parts,
        epochs=2,
        learning_rate=0.01,
        schedule="cosine",
        warmup_steps=7,
        clip_norm=1.0,
        patience=3,
        folder=folder,
        save_every=1,
        checkpoints=case.checkpoints,
        progress=False,
    )
    held_out = TensorDataset(table[:50], target[:50])
    Trainer(model, config, data, held_out, loss_fn=noisy_loss).fit()


def random_rows() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    return torch.rand(ROWS, COLUMNS), torch.randint(4, (ROWS,))


def noisy_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """With numbers from Python's and NumPy's generators: dropout draws only from torch's."""
    factor = 1 + 0.1 * random.random() + 0.1 * float(numpy.random.rand())
    return factor * nn.functional.cross_entropy(outputs, targets)


def write_parquet(path: Path) -> None:
    """The rows in six uneven row groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table, target = random_rows()
    columns = {str(i): column.numpy() for i, column in enumerate(table.T.contiguous())}
    rows = pa.table(columns | {"target": target.numpy()})
    pq.write_table(rows, path, row_group_size=ROWS // 5 - 3)


def in_a_fork(work: Callable[..., None], *args: Any) -> int:
    """The process id of a fork that does `work`."""
    if child := os.fork():
        return child
    try:
        work(*args)
        os._exit(0)
    except BaseException:
        if "Connection" not in (said := traceback.format_exc()):  # of a rank that was killed
            print(said, file=sys.stderr, flush=True)
        os._exit(1)


def one_rank(case: Case, folder: Path, rank: int, meeting: str, ready: int) -> None:
    """What each forked process does: join the others, say that it is ready, train."""
    torch.set_num_threads(1)
    os.fsync = lambda descriptor: time.sleep(FSYNC)
    if case.ranks > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        how: dict[str, Any] = {"rank": rank, "world_size": case.ranks}
        how["timeout"] = timedelta(seconds=60)
        dist.init_process_group("gloo", init_method=f"file://{meeting}", **how)
    os.write(ready, b"r")
    train(case, folder)


def start(case: Case, folder: Path) -> list[int]:
    """Start every rank, and return their process ids when all of them begin to train."""
    meeting = tempfile.mktemp(dir=folder.parent, prefix="meeting-")
    reading, writing = os.pipe()
    ranks = [
        in_a_fork(one_rank, case, folder, rank, meeting, writing) for rank in range(case.ranks)
    ]
    os.close(writing)
    for _ in ranks:
        assert os.read(reading, 1), "a rank did not begin"
    os.close(reading)
    return ranks


def ended_well(ranks: list[int]) -> bool:
    """Wait for all ranks; True when each of them came to its end."""
    codes = [os.waitpid(rank, 0)[1] for rank in ranks]
    return not any(codes)


def killed_until_done(case: Case, folder: Path, *, seconds: float, chance: random.Random) -> None:
    """Train with up to KILLS kills at random moments of a run that takes so many `seconds`."""
    for _ in range(KILLS):
        ranks = start(case, folder)
        time.sleep(chance.uniform(0, 0.7 * seconds))
        for victim in chance.choice([[rank] for rank in ranks] + [ranks]):
            os.kill(victim, signal.SIGKILL)
        time.sleep(0.02)
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)  # those that lost a neighbor; a second one is harmless
        if ended_well(ranks):
            return
    assert ended_well(start(case, folder))


def differences(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """The places where two checkpoints differ."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            if key not in OTHERWISE:
                yield from differences(one[key], other[key], f"{place}.{key}")
    elif isinstance(one, list | tuple) and len(one) == len(other):
        for i, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{place}[{i}]")
    elif isinstance(one, torch.Tensor):
        if not torch.equal(one, other):
            yield place
    elif one != other:
        yield f"{place}: {one!r} and {other!r}"


def state(folder: Path, name: str) -> dict[str, Any]:
    """All of a checkpoint; of shares, the whole tensors."""
    if (folder / f"{name}.pt").exists():
        return torch.load(folder / f"{name}.pt", weights_only=True)
    dcp_to_torch_save(folder / name, folder / "whole.pt")
    tensors = torch.load(folder / "whole.pt", weights_only=True)
    return {**torch.load(folder / name / "run.pt", weights_only=True), "tensors": tensors}


def compared(case: Case, chance: random.Random) -> list[str]:
    """What differs between a run left alone and one that was killed, and what that has left."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        alone, killed = Path(place) / "alone", Path(place) / "killed"
        if case.partitions:  # in a process of its own, as it uses torch
            assert ended_well([in_a_fork(write_parquet, Path(place) / "rows.parquet")])
        ranks, began = start(case, alone), time.monotonic()
        assert ended_well(ranks)
        seconds = time.monotonic() - began
        killed_until_done(case, killed, seconds=seconds, chance=chance)
        used = {(killed / name).resolve() for name in ("latest", "best")}
        left = [*killed.glob(".*.partial"), *(each for each in killed.glob(".shards-*"))]
        return [str(path) for path in left if path.resolve() not in used] + [
            f"{name}{difference}"
            for name in ("latest", "best")
            for difference in differences(state(alone, name), state(killed, name))
        ]


if __name__ == "__main__":
    for name in sys.argv[2:]:
        print(json.dumps(compared(CASES[name], random.Random(int(sys.argv[1])))), flush=True)
