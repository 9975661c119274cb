"""``multigpu train``: train on one GPU, on several, or on several machines.

    multigpu train --data digits
    multigpu train --data flights --mode dp --gpus 2
    torchrun --nproc_per_node 2 -m multigpu train --data flights --mode ddp

The options are the fields of `TrainConfig` (train_options.py); what is trained is one of the tasks
in training/tasks.py; what is printed stands in train_report.py, and why not in train_refusing.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from multigpu.commands.train_options import add_fields, given_fields
from multigpu.commands.train_refusing import notes, refused

if TYPE_CHECKING:
    from types import ModuleType

    from multigpu.commands.train_report import Report
    from multigpu.training import Trainer
    from multigpu.training.tasks import Task

COMMAND = "-m multigpu train --data flights --mode ddp"
FOLDERS = ("exercises", "solutions")  # of the course, wherever in it the command is started


class Job(NamedTuple):
    """What the command line asks for."""

    trainer: Trainer
    report: Report
    own: ModuleType | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu train``."""
    from multigpu.training import TrainConfig
    from multigpu.training.tasks import TASKS

    parser.epilog = f"One process for each GPU: torchrun --nproc_per_node 2 {COMMAND}"
    parser.add_argument(
        "--data",
        required=True,
        help=f"{', '.join(TASKS)}; or a Parquet file of flights, as `multigpu partition "
        "flights.parquet` makes it: each rank then reads its row groups alone",
    )
    parser.add_argument(
        "--with",
        dest="own",
        metavar="FOLDER",
        help="exercises or solutions: train with the wrapper written there, in dp with the "
        "functions of data_parallel.py, in ddp with BucketedDDP of distributed_data_parallel.py",
    )
    settings = parser.add_argument_group("settings")
    add_fields(
        settings, TrainConfig, per_task={name: task.defaults for name, task in TASKS.items()}
    )


def run(options: argparse.Namespace) -> int:
    """Train and report.  Returns the exit code: 2 for what cannot work, 130 after Ctrl-C."""
    job = None
    with notes():
        try:
            try:
                job = prepared(options)
            except (ValueError, OSError) as error:
                return refused(error, options)
            return trained(job, options)
        except KeyboardInterrupt:
            if job is not None:
                job.report.stopped()
            return 130


def trained(job: Job, options: argparse.Namespace) -> int:
    """Train and report.  Returns the exit code."""
    from multigpu.training.checkpoints import CheckpointError
    from multigpu.training.group import leave_group
    from multigpu.training.strategies.own_file import NotWritten, blame

    job.report.begin()
    try:
        job.trainer.fit()
    except (NotWritten, CheckpointError) as error:
        return refused(error, options)
    except Exception as error:
        said = job.own and blame(error, Path(str(job.own.__file__)))
        if not said:
            raise
        print(f"rank {job.trainer.launch.rank}: {said}", file=sys.stderr)
        return 1
    job.report.end()
    leave_group()  # in good order: this process may end at once
    return 0


def prepared(options: argparse.Namespace) -> Job:
    """The training that the options ask for.  Raises ValueError and OSError."""
    import torch

    from multigpu.commands.train_report import Report
    from multigpu.training import TrainConfig, Trainer
    from multigpu.training.launch import Launch
    from multigpu.training.modes import resolve_mode
    from multigpu.training.strategies.own_file import load_own

    launch = Launch.here()
    task, train, test = data_of(options.data)
    config = task.config(**given_fields(options, TrainConfig))
    own = None
    if options.own is not None:
        own = load_own(folder_of(options.own), resolve_mode(config, launch))
    torch.manual_seed(config.seed)  # the first weights
    trainer = Trainer(
        task.model(), config, train, test, loss_fn=task.loss_fn, metrics=task.metrics, own=own
    )
    return Job(trainer, Report(options.data, task, trainer), own)


def data_of(name: str) -> tuple[Task, Any, Any]:
    """The task called `name`, or the flights with the rows of a Parquet file to train on."""
    from multigpu.training.config import check_choice
    from multigpu.training.tasks import TASKS

    if Path(name).suffix != ".parquet":
        check_choice("data", name, (*TASKS, "FILE.parquet"))
        return TASKS[name], *TASKS[name].load()
    from multigpu.data import PartitionedFile
    from multigpu.data.flight_rows import TARGET, flight_columns

    train = PartitionedFile(name, inputs=flight_columns(), target=TARGET)
    return TASKS["flights"], train, TASKS["flights"].load().test


def folder_of(name: str) -> Path:
    """The folder with the exercises to train with."""
    if name in FOLDERS and not Path(name).is_dir():
        from multigpu.checking.catalog import find_course

        return find_course(Path.cwd()).root / name
    return Path(name)
