"""Models that cannot be cut: which operation it is, on which line, and what to do."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from types import FrameType

import torch


class Refused(Exception):
    """What is wrong with a model, without "the model cannot be cut"."""


# As frames name their files. Links are not followed, or below a linked .venv torch were the model.
OURS = str(Path(__file__).parent)
TORCH = str(Path(torch.__file__).parent)
NN = f"{TORCH}{os.sep}nn{os.sep}"


def here() -> str:
    """The line of the model's code that runs now: the innermost that is not PyTorch's."""
    frame: FrameType | None = sys._getframe(1)
    inside = None
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(OURS):
            inside = inside or f"{short(file)}:{frame.f_lineno}"
            if not file.startswith(TORCH):
                return f"{short(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return inside or "?"


def line_of(error: BaseException) -> tuple[str, str]:
    """Where in the model's code an error arose: `model.py:31`, and the text of that line.

    Where a module of torch.nn is to blame, its own line is named after the model's.
    """
    frames = traceback.extract_tb(error.__traceback__)
    # The first of our own frames stands before the model's; theirs and PyTorch's come after it.
    begin = next((i for i, frame in enumerate(frames) if frame.filename.startswith(OURS)), 0)
    after = [frame for frame in frames[begin:] if not frame.filename.startswith(OURS)]
    own = [frame for frame in after if not frame.filename.startswith(TORCH)]
    found = (own or after or list(frames))[-1]
    where, line = f"{short(found.filename)}:{found.lineno}", (found.line or "").strip()
    blamed = [frame for frame in after[after.index(found) + 1 :] if NN in frame.filename]
    if blamed and blamed[-1].name not in ("_call_impl", "_wrapped_call_impl"):
        file = blamed[-1].filename.partition(TORCH)[2]
        where += f" (in torch{file}:{blamed[-1].lineno}, {blamed[-1].name})"
    return where, line


def short(file: str) -> str:
    """A file as people call it: relative to where they are, if it is there."""
    try:
        near = os.path.relpath(file)
    except ValueError:  # another drive
        return file
    return file if near.startswith("..") else near


def refuse(error: Exception) -> ValueError:
    """The ValueError for a model whose forward could not be recorded."""
    where, line = line_of(error)
    kind, said = type(error).__name__, (str(error).strip().splitlines() or [""])[0].rstrip(".")
    if "DataDependent" in kind:
        return ValueError(
            f"the model cannot be cut: at {where}, `{line}` depends on the numbers in a tensor, so "
            "there is no one list of steps to cut. Decide it outside forward, or replace the "
            "branch by arithmetic (torch.where); or write the stages by hand."
        )
    if "DynamicOutputShape" in kind:
        return ValueError(
            f"the model cannot be cut: at {where}, `{line}` makes a tensor whose size depends on "
            "the numbers in another one, so the next stage could not know what it receives. Use "
            "a mask of fixed size (torch.where), or write the stages by hand."
        )
    return ValueError(
        f"the model cannot be cut: its forward fails at {where}, `{line}`, when it runs on tensors "
        f"without numbers: {kind}: {said}. "
        "If it fails with the sample itself, too, mend that; else write the stages by hand."
    )
