"""``multigpu train``: train on one GPU, on several, or on several machines.

    multigpu train --data digits
    multigpu train --data flights --mode dp --gpus 2
    torchrun --nproc_per_node 2 -m multigpu train --data flights --mode ddp

There is one option for each field of `TrainConfig`: the line below it in training/config.py is what
``--help`` says, so that the two cannot differ.  What is trained is a task of training/tasks.py.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import inspect
import os
import re
import shlex
import sys
import time
import types
import typing
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from multigpu.training.history import History

if TYPE_CHECKING:
    from multigpu.training import Trainer
    from multigpu.training.tasks import Task

COMMAND = "-m multigpu train --data flights --mode ddp"
FOLDERS = ("exercises", "solutions")  # of the course, wherever in it the command is started
METAVARS = {int: "N", float: "X", str: "NAME"}
PATIENCE = 10.0  # seconds in which a machine's first rank has said why it ends
WORDS = 58  # columns for what a rule does


class TrainingJob(NamedTuple):
    """What the command line asks for."""

    trainer: Trainer
    report: Report
    own: types.ModuleType | None


def train_options(parser: argparse.ArgumentParser) -> None:
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


def run_train(options: argparse.Namespace) -> int:
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


def trained(job: TrainingJob, options: argparse.Namespace) -> int:
    """Train and report.  Returns the exit code."""
    from multigpu.training.checkpoint import CheckpointError
    from multigpu.training.distributed import leave_group
    from multigpu.training.own import NotWritten, blame

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


def prepared(options: argparse.Namespace) -> TrainingJob:
    """The training that the options ask for.  Raises ValueError and OSError."""
    import torch

    from multigpu.training import TrainConfig, Trainer
    from multigpu.training.config import resolve_mode
    from multigpu.training.distributed import Launch
    from multigpu.training.own import load_own

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
    return TrainingJob(trainer, Report(options.data, task, trainer), own)


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


# --- options -------------------------------------------------------------------------------------


def add_fields(
    parser: argparse._ArgumentGroup, config: type, *, per_task: Mapping[str, Mapping[str, Any]]
) -> None:
    """An option for every field of the dataclass `config`; one that is not given is not set.

    `per_task`: what each task sets instead of the fields' own defaults, by the task's name.
    """
    kinds = typing.get_type_hints(config)
    says = docs_of_fields(config)
    for field in dataclasses.fields(config):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            dest=field.name,
            default=argparse.SUPPRESS,
            help=f"{says[field.name]}{default_of(field, per_task)}".replace("%", "%%"),
            **how_to_read(kinds[field.name]),
        )


def given_fields(options: argparse.Namespace, config: type) -> dict[str, Any]:
    """The fields of `config` that the command line sets."""
    names = (field.name for field in dataclasses.fields(config))
    return {name: getattr(options, name) for name in names if hasattr(options, name)}


def as_options(message: str, config: type) -> str:
    """``batch_size=100`` in a message as it is typed: ``--batch-size 100``."""
    names = "|".join(field.name for field in dataclasses.fields(config))

    def typed(found: re.Match[str]) -> str:
        option, value = found[1].replace("_", "-"), found[2].strip("'\"")
        switches = {"True": f"--{option}", "False": f"--no-{option}", "None": f"no --{option}"}
        return switches.get(value, f"--{option} {value}")

    return re.sub(rf"\b({names})=('[^']*'|\"[^\"]*\"|[-+.\w]*\w)", typed, message)


def docs_of_fields(config: type) -> dict[str, str]:
    """The string that stands below each field of a dataclass, on one line."""
    [definition] = ast.parse(inspect.getsource(config)).body
    assert isinstance(definition, ast.ClassDef)
    said: dict[str, str] = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            said[field.target.id] = " ".join(str(text.value.value).split())
    return said


def default_of(field: dataclasses.Field[Any], per_task: Mapping[str, Mapping[str, Any]]) -> str:
    """`` (default: 128; flights: 512)``; nothing where the field's own words say it."""
    own = {
        task: settings[field.name]
        for task, settings in per_task.items()
        if settings.get(field.name, field.default) != field.default
    }
    said = {} if field.default is None else {"default": field.default}
    parts = [f"{name}: {plain(value)}" for name, value in {**said, **own}.items()]
    return f" ({'; '.join(parts)})" if parts else ""


def plain(value: Any) -> str:
    """A default as it is typed."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value}"


def how_to_read(kind: Any) -> dict[str, Any]:
    """What argparse is told about a field of this type; ``int | None`` is read as ``int``."""
    members = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    first = next(member for member in members if member is not type(None))
    if first is bool:
        return {"action": argparse.BooleanOptionalAction}
    return {"type": first, "metavar": METAVARS[first]}


# --- refusals ------------------------------------------------------------------------------------


@contextlib.contextmanager
def notes() -> Iterator[None]:
    """Show the package's own warnings as one line, without the line of code that they are from."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def shown(
            message: Warning | str, category: type[Warning], filename: str, *more: Any
        ) -> None:
            if category is UserWarning and "multigpu" in Path(filename).parts:
                print(f"note: {message}", file=sys.stderr)
            else:
                show(message, category, filename, *more)

        warnings.showwarning = shown  # type: ignore[assignment]
        yield


def refused(error: Exception, options: argparse.Namespace) -> int:
    """Say in one line why it cannot be, once on each machine: all its ranks know the same."""
    from multigpu.training import TrainConfig
    from multigpu.training.config import NeedsTorchrun
    from multigpu.training.own import CannotImport

    if os.environ.get("LOCAL_RANK", "0") == "0":
        said = str(error)
        if isinstance(error, NeedsTorchrun):
            said = error.with_program(on_ranks(options))
        if not isinstance(error, CannotImport):  # which quotes a line of code
            said = as_options(said, TrainConfig)
        print(f"multigpu train: {said}", file=sys.stderr)
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        time.sleep(PATIENCE)  # torchrun ends all ranks with the first that ends: not before it said
    return 2


def on_ranks(options: argparse.Namespace) -> str:
    """The command that was given as torchrun starts it: with mode ddp, or another for ranks."""
    from multigpu.training import TrainConfig

    given = given_fields(options, TrainConfig)
    if given.get("mode", "auto") in ("auto", "single", "dp"):
        given["mode"] = "ddp"
    given.pop("gpus", None)  # each rank has one
    words = ["-m", "multigpu", "train", "--data", options.data]
    words += [] if options.own is None else ["--with", options.own]
    for name, value in given.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}", str(value)]
    return shlex.join(words)


# --- what is printed, on rank 0 alone ------------------------------------------------------------


class Report:
    """The words around one training run."""

    def __init__(self, data: str, task: Task, trainer: Trainer) -> None:
        self.data, self.task, self.trainer = data, task, trainer
        self.began = time.perf_counter()

    def begin(self) -> None:
        """Say what runs; from now on each epoch is said when it is over."""
        details = self.trainer.strategy.details()
        self._say(
            f"{self.data}: {self.task.title}",
            self.trainer.describe(),
            *([details] if details else []),
        )
        if self.trainer.launch.is_main:
            self.trainer.history = Spoken(self.trainer.total_steps)

    def end(self) -> None:
        """Say what came of it, beside what simple rules reach, and where it is kept."""
        seconds = time.perf_counter() - self.began
        step = self.trainer.position.step
        self._say(f"done: {step:,} steps, {seconds:.1f} s with the evaluations")
        if self.trainer.launch.is_main:
            self._say(*compared(self.trainer.history.last, self.task.metrics), *self._kept())

    def stopped(self) -> None:
        """One line after Ctrl-C."""
        step = self.trainer.position.step
        checkpoints = self.trainer.checkpoints
        if checkpoints is None:
            kept = "nothing is kept without --folder"
        elif checkpoints.path().exists():
            kept = f"{checkpoints.path()} is whole, the same command goes on from there"
        else:
            kept = f"no checkpoint in {checkpoints.folder} yet (--save-every N writes more)"
        self._say(f"\nstopped after step {step:,}; {kept}")

    def _kept(self) -> Iterator[str]:
        """Where the files are."""
        if self.trainer.checkpoints is None:
            yield "nothing was kept: --folder runs/NAME keeps checkpoints and the history"
            return
        checkpoints = self.trainer.checkpoints
        yield f"history      {checkpoints.folder / 'history.csv'}"
        yield f"checkpoints  {checkpoints.path('latest')}, {checkpoints.path('best')}"

    def _say(self, *lines: str) -> None:
        if self.trainer.launch.is_main:
            print(*lines, sep="\n", flush=True)


class Spoken(History):
    """A history that prints each epoch as it comes: the log of a batch job shows how it goes."""

    def __init__(self, total_steps: int) -> None:
        super().__init__()
        self.total_steps = total_steps

    def add(self, row: Mapping[str, Any]) -> None:
        super().add(row)
        from tqdm import tqdm  # writes above a bar, if there is one

        tqdm.write(line_of(row, self.total_steps))


def line_of(row: Mapping[str, Any], total_steps: int) -> str:
    """``epoch 2  step 1,072 of 1,608  loss 1.234  recall@10 0.871  12.3 s  5,400 rows/s``."""
    evaluated = [
        f"{name.removeprefix('eval_') if name != 'eval_loss' else 'test loss'} {value:.4f}"
        for name, value in row.items()
        if name.startswith("eval_")
    ]
    return "  ".join(
        [
            f"epoch {row['epoch']}",
            f"step {row['step']:,} of {total_steps:,}",
            f"loss {row['loss']:.4f}",
            *evaluated,
            f"{row['seconds']:.1f} s",
            f"{row['rows_per_second']:,.0f} rows/s",
        ]
    )


def compared(last: Mapping[str, Any], metrics: tuple[str, ...]) -> Iterator[str]:
    """The last figures beside those of the rules that the flights are known by."""
    names = [name for name in metrics if f"eval_{name}" in last]
    if "recall@10" not in names:
        return
    from multigpu.data.flight_rows import RULES, flight_baselines

    yield f"{'':{WORDS}}" + "".join(f"{name:>11}" for name in names)
    rules = {RULES[rule]: figures for rule, figures in flight_baselines().items()}
    model = {name: float(last[f"eval_{name}"]) for name in names}
    for rule, figures in {"this model": model, **rules}.items():
        shown = "".join(f"{figures[name]:11.4f}" for name in names if name in figures)
        yield f"{rule:{WORDS}}{shown}"
