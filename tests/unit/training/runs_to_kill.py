"""What killing.py trains: a small model that draws from every generator there is.

All that it imports is imported before the forks, and nothing is computed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pandas  # noqa: F401 - by the history; it takes long
import torch
import torch._dynamo  # by the optimizers
import torch.distributed.checkpoint  # by zero3
import torch.distributed.fsdp
from torch import nn
from torch.utils.data import TensorDataset

from multigpu.data import PartitionedFile
from multigpu.training import TrainConfig, Trainer

COLUMNS, CLASSES, BATCH = 12, 4, 12


@dataclass(frozen=True)
class Case:
    """What is trained, and on how many ranks."""

    mode: str
    ranks: int = 1
    partitions: bool = False  # rows from a Parquet file instead of memory
    workers: int = 0
    parts: int = 2  # one row alone is too few for BatchNorm
    epochs: int = 4
    rows: int = 250
    checkpoints: str = "full"


CASES = {
    "single": Case("single"),
    "single-workers": Case("single", workers=1),
    "dp": Case("dp"),
    "ddp": Case("ddp", ranks=2),
    "ddp-3": Case("ddp", ranks=3, parts=1),
    "ddp-partitions": Case("ddp", ranks=2, partitions=True),
    "zero2": Case("zero2", ranks=2),
    "zero3-sharded": Case("zero3", ranks=3, parts=1, checkpoints="sharded"),
}


def model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(COLUMNS, 24),
        nn.BatchNorm1d(24),
        nn.ReLU(),
        nn.Dropout(0.4),
        nn.Linear(24, CLASSES),
    )


def noisy_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """With numbers from Python's and NumPy's generators: dropout draws only from torch's."""
    factor = 1 + 0.1 * random.random() + 0.1 * float(numpy.random.rand())
    return factor * nn.functional.cross_entropy(outputs, targets)


def train(case: Case, folder: Path) -> None:
    """One start of the run, in this process."""
    table, target = random_rows(case.rows)
    held_out = TensorDataset(table[:50], target[:50])
    data: Any = TensorDataset(table, target)
    if case.partitions:
        names = [str(column) for column in range(COLUMNS)]
        data = PartitionedFile(folder.parent / "rows.parquet", inputs=names, target="target")
    config = TrainConfig(
        mode=case.mode,
        gpus=2 if case.mode == "dp" else None,
        batch_size=BATCH,
        accumulation_steps=case.parts,
        epochs=case.epochs,
        learning_rate=0.01,
        schedule="cosine",
        warmup_steps=7,
        clip_norm=1.0,
        patience=3,
        folder=folder,
        save_every=1,
        checkpoints=case.checkpoints,
        workers=case.workers,
        progress=False,
    )
    Trainer(model(), config, data, held_out, loss_fn=noisy_loss).fit()


def random_rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    return torch.rand(count, COLUMNS), torch.randint(CLASSES, (count,))


def write_parquet(path: Path, rows: int) -> None:
    """The rows in six uneven row groups; done in a process of its own, as torch is used."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table, target = random_rows(rows)
    columns = {str(i): column.numpy() for i, column in enumerate(table.T.contiguous())}
    pq.write_table(
        pa.table(columns | {"target": target.numpy()}), path, row_group_size=rows // 5 - 3
    )
