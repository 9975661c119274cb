"""``multigpu train``: train on one GPU, on several, or on several machines.

    multigpu train --data digits
    multigpu train --data flights --mode dp --gpus 2
    torchrun --nproc_per_node 2 -m multigpu train --data flights --mode ddp

There is one option for each field of `TrainConfig`, and ``--help`` shows the line below the field
in training/config.py, so that the two cannot differ. ``--data`` names a task of training/tasks.py.
Or both the model and the data come from functions of your own, here in a file ``own.py``:

    multigpu train --model own:model --data own:data
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import importlib
import inspect
import os
import shlex
import sys
import time
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from multigpu.checking.catalog import find_course
from multigpu.commands.showing import as_options, option
from multigpu.data import PartitionedFile
from multigpu.data.flight_rows import RULES, TARGET, flight_baselines, flight_columns
from multigpu.training import TrainConfig, Trainer
from multigpu.training.checkpoint import CheckpointError
from multigpu.training.config import NeedsTorchrun, check_choice, resolve_mode
from multigpu.training.distributed import Launch, leave_group
from multigpu.training.own import NotWritten, blame, load_own
from multigpu.training.tasks import TASKS, Task

COMMAND = "-m multigpu train --data flights --mode ddp"
FOLDERS = ("exercises", "solutions")  # of the course, wherever in it the command is started
PACKAGE = Path(__file__).parents[1]
METAVARS = {int: "N", float: "X", str: "NAME"}
PATIENCE = 10.0  # seconds in which a machine's first rank has said why it ends
RULE_WIDTH = 58  # columns for what a rule does


# --- options -------------------------------------------------------------------------------------


def train_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``multigpu train``: its own, and one for every field of TrainConfig."""
    parser.epilog = f"One process for each GPU: torchrun --nproc_per_node 2 {COMMAND}"
    parser.add_argument(
        "--data",
        required=True,
        help=f"{', '.join(TASKS)}; or a Parquet file of flights, as `multigpu partition "
        "flights.parquet` writes it: each rank then reads only its own row groups; or "
        "module:function, a function () -> (data to train on, data to evaluate on), with --model",
    )
    parser.add_argument(
        "--model",
        metavar="MODULE:FUNCTION",
        help="a function () -> nn.Module of your own; with data of your own the loss is "
        "cross-entropy and the metric is accuracy",
    )
    parser.add_argument(
        "--with",
        dest="own",
        metavar="FOLDER",
        help="exercises or solutions: train with the wrapper written there, in dp with the "
        "functions of data_parallel.py, in ddp with BucketedDDP of distributed_data_parallel.py",
    )
    settings = parser.add_argument_group("settings")
    kinds, says = typing.get_type_hints(TrainConfig), docs_of_fields(TrainConfig)
    for field in dataclasses.fields(TrainConfig):
        kind = (typing.get_args(kinds[field.name]) or (kinds[field.name],))[0]  # of int | None: int
        how: dict[str, Any] = {"type": kind, "metavar": METAVARS.get(kind)}
        if kind is bool:
            how = {"action": argparse.BooleanOptionalAction}
        settings.add_argument(
            option(field.name),
            default=argparse.SUPPRESS,
            help=f"{says[field.name]}{default_of(field)}".replace("%", "%%"),
            **how,
        )


def given_fields(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of TrainConfig that the command line sets."""
    names = (field.name for field in dataclasses.fields(TrainConfig))
    return {name: getattr(options, name) for name in names if hasattr(options, name)}


def docs_of_fields(config: type) -> dict[str, str]:
    """The string below each field of a dataclass, on one line."""
    [definition] = ast.parse(inspect.getsource(config)).body
    assert isinstance(definition, ast.ClassDef)
    said: dict[str, str] = {}
    for pair in zip(definition.body, definition.body[1:], strict=False):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=words)):
                said[name] = " ".join(str(words).split())
    return said


def default_of(field: dataclasses.Field[Any]) -> str:
    """`` (default: 128; flights: 512)``; nothing if the field's own text says it."""
    said: dict[str, Any] = {} if field.default is None else {"default": field.default}
    for name, task in TASKS.items():
        if task.defaults.get(field.name, field.default) != field.default:
            said[name] = task.defaults[field.name]
    words = {True: "yes", False: "no"}
    parts = [f"{k}: {words[v] if isinstance(v, bool) else v}" for k, v in said.items()]
    return f" ({'; '.join(parts)})" if parts else ""


# --- the training run ----------------------------------------------------------------------------


def run_train(options: argparse.Namespace) -> int:
    """Train and report.  Returns the exit code: 2 for wrong settings, 130 after Ctrl-C."""
    run = None
    with notes():
        try:
            run = TrainingRun(options)
            run.train()
        except KeyboardInterrupt:
            if run is not None:
                run.say_stopped()
            return 130
        except (NotWritten, CheckpointError) as error:
            return refused(error, options)
        except Exception as error:
            if run is None and isinstance(error, ValueError | OSError):
                return refused(error, options)
            said = run and run.own and blame(error, Path(str(run.own.__file__)))
            if not said:
                raise
            print(f"rank {Launch.here().rank}: {said}", file=sys.stderr)
            return 1
    return 0


class TrainingRun:
    """The training run of a command line. Only rank 0 prints."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Raises ValueError and OSError for settings that cannot work."""
        launch = Launch.here()
        self.data = options.data
        torch.manual_seed(getattr(options, "seed", 0))  # every rank draws the same data
        self.task, train, test = data_of(options.data, options.model)
        config = self.task.config(**given_fields(options))
        self.own = None
        if options.own is not None:
            self.own = load_own(folder_of(options.own), resolve_mode(config, launch))
        torch.manual_seed(config.seed)  # the first weights
        self.trainer = Trainer(
            self.task.model(),
            config,
            train,
            test,
            loss_fn=self.task.loss_fn,
            metrics=self.task.metrics,
            callbacks=[PrintedRows()],
            own=self.own,
        )

    def train(self) -> None:
        """Train, and print the settings, each epoch and the results."""
        began, trainer = time.perf_counter(), self.trainer
        details = trainer.strategy.details
        self.say(f"{self.data}: {self.task.title}", trainer.describe(), *filter(None, [details]))
        trainer.fit()
        seconds = time.perf_counter() - began
        self.say(
            f"done: {trainer.position.step:,} steps, {seconds:.1f} s including the evaluations"
        )
        if trainer.launch.is_main:
            self.say(*compared(trainer.history.last, self.task.metrics))
        if trainer.checkpoints is None:
            self.say("nothing was saved: --folder runs/NAME saves checkpoints and the history")
        else:
            kept = trainer.checkpoints
            self.say(f"history      {kept.folder / 'history.csv'}")
            self.say(f"checkpoints  {kept.path('latest')}, {kept.path('best')}")
        leave_group()  # cleanly, because this process may end at once

    def say_stopped(self) -> None:
        """One line after Ctrl-C."""
        checkpoints = self.trainer.checkpoints
        if checkpoints is None:
            kept = "nothing is saved without --folder"
        elif checkpoints.path().exists():
            kept = f"{checkpoints.path()} is complete, and the same command resumes from it"
        else:
            kept = f"no checkpoint in {checkpoints.folder} yet (--save-every N writes more)"
        self.say(f"\nstopped after step {self.trainer.position.step:,}; {kept}")

    def say(self, *lines: str) -> None:
        """Print these lines on rank 0."""
        if self.trainer.launch.is_main:
            for line in lines:
                print(line, flush=True)


def data_of(name: str, model: str | None = None) -> tuple[Task, Any, Any]:
    """The task called `name`, or the flights with the rows of a Parquet file to train on, or the
    data of a function; with the model of the function `model`, if it is given."""
    own: dict[str, Any] = {}
    if model is not None:
        own = {"model": model_of(model), "title": f"train {model}"}
    if Path(name).suffix == ".parquet":
        task = dataclasses.replace(TASKS["flights"], **own)
        return task, PartitionedFile(name, inputs=flight_columns(), target=TARGET), task.load().test
    if ":" not in name:
        check_choice("data", name, (*TASKS, "FILE.parquet", "MODULE:FUNCTION"))
        task = dataclasses.replace(TASKS[name], **own)
        return task, *task.load()
    if model is None:
        raise ValueError(f"--data {name} needs a model, too: --model MODULE:FUNCTION")
    load = function_named("--data", name)
    found = load()
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise ValueError(
            f"--data {name} returned a {type(found).__name__}: it must return a pair, the data to "
            "train on and the data to evaluate on (or None)"
        )
    return Task(load=load, **own), found[0], found[1]


def model_of(name: str) -> Callable[[], nn.Module]:
    """The function called `name`, which must return a model."""
    build = function_named("--model", name)

    def model() -> nn.Module:
        built = build()
        if isinstance(built, nn.Module):
            return built
        what = type(built).__name__
        raise ValueError(f"--model {name} returned a {what}: it must return an nn.Module")

    return model


def function_named(given: str, name: str) -> Any:
    """The function that "module:function" names, from the folder of the command or installed.

    Raises ValueError if there is none.
    """
    where, _, function = name.partition(":")
    if not where or not function:
        raise ValueError(f"{given} {name}: give MODULE:FUNCTION, for example own:model")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(where)
    except ModuleNotFoundError as error:
        raise ValueError(f"{given} {name}: {error}, in {Path.cwd()} or installed") from None
    if not hasattr(module, function):
        raise ValueError(f"{given} {name}: {where} has no function {function!r}")
    return getattr(module, function)


def folder_of(name: str) -> Path:
    """The folder with the exercises to train with."""
    if name in FOLDERS and not Path(name).is_dir():
        return find_course(Path.cwd()).root / name
    return Path(name)


class PrintedRows:
    """Prints each row of the history as it comes: the log of a batch job shows how it goes."""

    def on_epoch(self, trainer: Trainer, row: Mapping[str, Any]) -> None:
        """Print the row on rank 0, above the bar if there is one."""
        if not trainer.launch.is_main:
            return
        evaluated = {
            name.removeprefix("eval_"): value
            for name, value in row.items()
            if name.startswith("eval_")
        }
        words = [
            f"epoch {row['epoch']}",
            f"step {row['step']:,} of {trainer.total_steps:,}",
            f"loss {row['loss']:.4f}",
            *(f"{'test loss' if k == 'loss' else k} {value:.4f}" for k, value in evaluated.items()),
            f"{row['seconds']:.1f} s",
            f"{row['rows_per_second']:,.0f} rows/s",
        ]
        tqdm.write("  ".join(words))


def compared(last: Mapping[str, Any], metrics: tuple[str, ...]) -> Iterator[str]:
    """The last figures beside those of the simple rules of `flight_baselines`."""
    names = [name for name in metrics if f"eval_{name}" in last]
    if "recall@10" not in names:
        return
    yield f"{'':{RULE_WIDTH}}" + "".join(f"{name:>11}" for name in names)
    rules = {RULES[rule]: figures for rule, figures in flight_baselines().items()}
    model = {name: float(last[f"eval_{name}"]) for name in names}
    for rule, figures in {"this model": model, **rules}.items():
        shown = "".join(f"{figures[name]:11.4f}" for name in names if name in figures)
        yield f"{rule:{RULE_WIDTH}}{shown}"


# --- refusals ------------------------------------------------------------------------------------


@contextlib.contextmanager
def notes() -> Iterator[None]:
    """Show the package's own warnings as one line, without the line of code that they are from."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def shown(
            message: Warning | str, category: type[Warning], filename: str, *more: Any
        ) -> None:
            if category is UserWarning and Path(filename).is_relative_to(PACKAGE):
                print(f"note: {message}", file=sys.stderr)
            else:
                show(message, category, filename, *more)

        warnings.showwarning = shown  # type: ignore[assignment]
        yield


def refused(error: Exception, options: argparse.Namespace) -> int:
    """Print the reason in one line, once per machine, because all its ranks have the same one."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        said = str(error)
        if isinstance(error, NeedsTorchrun):
            said = error.with_program(torchrun_command(options))
        # With another cause the message quotes the learner's code.
        if isinstance(error, CheckpointError) or not error.__cause__:
            said = as_options(said, [field.name for field in dataclasses.fields(TrainConfig)])
        print(f"multigpu train: {said}", file=sys.stderr)
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        time.sleep(PATIENCE)  # torchrun ends all ranks with the first that ends: not before it said
    return 2


def torchrun_command(options: argparse.Namespace) -> str:
    """The given command as torchrun would start it: with mode ddp, or another mode for ranks."""
    given = given_fields(options)
    if given.get("mode", "auto") in ("auto", "single", "dp"):
        given["mode"] = "ddp"
    given.pop("gpus", None)  # each rank has one
    words = ["-m", "multigpu", "train", "--data", options.data]
    words += [] if options.model is None else ["--model", options.model]
    words += [] if options.own is None else ["--with", options.own]
    for name, value in given.items():
        if isinstance(value, bool):
            words.append(option(name if value else f"no-{name}"))
        else:
            words += [option(name), str(value)]
    return shlex.join(words)
