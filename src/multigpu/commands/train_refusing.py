"""Why ``multigpu train`` cannot do what was asked, in the words of its own options."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from multigpu.commands.train_options import as_options, given_fields

PATIENCE = 10.0  # seconds in which a machine's first rank has said why it ends


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
    from multigpu.training.strategies.own_file import CannotImport

    if os.environ.get("LOCAL_RANK", "0") == "0":
        said = str(error)
        if not isinstance(error, CannotImport):  # which quotes a line of code
            said = in_words_of_the_command(said, options)
        print(f"multigpu train: {said}", file=sys.stderr)
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        time.sleep(PATIENCE)  # torchrun ends all ranks with the first that ends: not before it said
    return 2


def in_words_of_the_command(message: str, options: argparse.Namespace) -> str:
    """A message of the package with options for fields, and the whole command for torchrun."""
    from multigpu.training import TrainConfig

    said = as_options(message, TrainConfig).replace(", or try it here with run_ranks(fn, 2)", "")
    started = re.compile(r"(torchrun --nproc_per_node \w+) \.\.\.")
    return started.sub(lambda found: f"{found[1]} {on_ranks(options)}", said)


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
