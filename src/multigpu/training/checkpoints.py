"""Checkpoints: where a run stands, in one file that is always whole.

    with Checkpoints(Path("runs/digits"), launch=Launch.here()) as checkpoints:
        state = checkpoints.load()                # None: there is none yet
        checkpoints.save({"model": ..., "step": 400}, best=True)

`latest.pt` is what a run goes on from, `best.pt` what did best in the evaluation. Rank 0 writes,
into a file beside it that then takes the name: `os.replace` is atomic, so whoever reads finds the
old checkpoint or the new one, whenever the writer is killed. Without this package's help,
`torch.load("latest.pt")["model"]` is a state dict.

Next: resuming.py (whether a checkpoint fits this model and this run), rng.py (random numbers).
"""

from __future__ import annotations

import io
import pickle
import shutil
import socket
import uuid
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from multigpu.training.agreement import everyones, from_main_rank, main_rank_does
from multigpu.training.atomic_file import LEFTOVERS, replace_file
from multigpu.training.folder_lock import FolderInUse, FolderLock
from multigpu.training.plain_state import plain

if TYPE_CHECKING:
    from multigpu.training.launch import Launch

FORMAT = "multigpu checkpoint 1"
SHARES = ".shares-"  # the folders of sharded_checkpoints.py, to which `latest` and `best` lead
UNREADABLE = (RuntimeError, pickle.UnpicklingError, zipfile.BadZipFile, EOFError, ValueError)


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read, or belongs to another run. Raised on every rank."""


class Checkpoints:
    """The checkpoints of one run, in one folder.

    Inside `with`, no other run writes into the folder, and what killed runs have left half written
    is removed. `save` and `load` are calls of all ranks together; `load` needs no `with`.
    """

    def __init__(self, folder: str | Path, *, launch: Launch) -> None:
        self.folder, self.launch = Path(folder), launch
        self._lock = FolderLock(self.folder)
        self._entered = False

    def __enter__(self) -> Checkpoints:
        """Raises CheckpointError where another run has the folder, or it cannot be written."""
        main_rank_does(self._take_folder, error=CheckpointError)
        self._entered = True
        return self

    def __exit__(self, *exception: object) -> None:
        self._entered = False
        self._lock.release()

    def path(self, name: str = "latest") -> Path:
        return self.folder / f"{name}.pt"

    def save(self, state: dict[str, Any], *, name: str = "latest", best: bool = False) -> None:
        """Write `state`, of plain values and tensors, and return when the file is complete.

        All ranks call it, rank 0's `state` is written. `best`: it becomes `best.pt`, too. Raises
        CheckpointError on every rank when rank 0 could not write, and TypeError for a state that
        could not be loaded again.
        """
        if not self._entered:
            with self:
                return self.save(state, name=name, best=best)
        main_rank_does(lambda: self._write(state, name=name, best=best), error=CheckpointError)

    def clear(self) -> None:
        """Remove the folder's checkpoints, to begin anew. All ranks call it."""

        def remove() -> None:
            for name in ("latest", "best"):
                (self.folder / name).unlink(missing_ok=True)
                (self.folder / f"{name}.pt").unlink(missing_ok=True)
            self.sweep()

        main_rank_does(remove, error=CheckpointError)

    def load(self, name: str = "latest") -> dict[str, Any] | None:
        """The saved state, tensors on the CPU, the same on every rank; None where there is none.

        Ranks that do not see rank 0's file, on another machine, are sent it. Raises CheckpointError
        on every rank for a file that is no checkpoint, or where rank 0 lacks what others have.
        """
        state, problem = None, None
        try:
            state = read(self.path(name))
        except CheckpointError as error:
            problem = str(error)
        step = None if state is None else state.get("step", 0)
        mark = None if state is None else state["saved"]
        views = everyones((problem, mark, step, socket.gethostname()))
        self._refuse(views, name)
        if all(view[1] == views[0][1] for view in views):
            return state
        sent = from_main_rank(self.path(name).read_bytes() if self.launch.is_main else None)
        return parsed(sent, self.path(name))

    def _refuse(self, views: list[tuple[Any, ...]], name: str) -> None:
        """Raise CheckpointError unless rank 0's checkpoint is what everybody can go on from."""
        for problem, *_ in views:
            if problem:
                raise CheckpointError(problem)
        _, _, main_step, main_host = views[0]
        for rank, (_, _, step, host) in enumerate(views):
            if step is not None and (main_step is None or step > main_step):
                has = "none" if main_step is None else f"one of step {main_step}"
                raise CheckpointError(
                    f"{self.path(name)}: rank {rank} on {host} has a checkpoint of step {step}, "
                    f"but rank 0 on {main_host} has {has}. Use a folder that all machines share, "
                    f"or copy the newer file to {main_host}."
                )

    def _take_folder(self) -> None:
        """Lock the folder and remove what killed writers have left."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._lock.acquire():
                self.sweep()
        except FolderInUse as owner:
            raise CheckpointError(
                f"{self.folder} belongs to another run that is still going on ({owner}). Wait for "
                "its end, end it, or give this run a folder of its own."
            ) from None
        except OSError as problem:
            raise self._cannot_write(problem) from problem

    def sweep(self) -> None:
        """Remove what killed writers have left, and folders of shares that are no longer used."""
        for leftover in self.folder.glob(LEFTOVERS):
            leftover.unlink(missing_ok=True)
        used = {(self.folder / name).resolve().name for name in ("latest", "best")}
        for shares in self.folder.glob(f"{SHARES}*"):
            if shares.name not in used:
                shutil.rmtree(shares, ignore_errors=True)

    def _write(self, state: dict[str, Any], *, name: str, best: bool) -> None:
        """`best.pt` comes first: a run killed in between goes on from the older `latest.pt`, and
        comes by the same best once more."""
        kept = plain({**state, "format": FORMAT, "saved": uuid.uuid4().hex})
        memory = io.BytesIO()  # torch.save into a file hides a full disk behind an error of its own
        torch.save(kept, memory)
        try:
            for target in ("best", name) if best else (name,):
                replace_file(self.path(target), memory.getbuffer())
                if (link := self.folder / target).is_symlink():  # of the time before
                    link.unlink()
        except OSError as problem:
            raise self._cannot_write(problem) from problem

    def _cannot_write(self, problem: OSError) -> CheckpointError:
        no_folder = isinstance(problem, FileExistsError | NotADirectoryError)
        advice = "Give the name of a folder" if no_folder else "Make room or give another folder"
        return CheckpointError(
            f"rank 0 on {socket.gethostname()} cannot write into {self.folder}: "
            f"{problem.strerror or problem}. {advice}; what was saved there before is still whole."
        )


def read(path: Path) -> dict[str, Any] | None:
    """The state in a file; None where there is no file.  Raises CheckpointError."""
    try:
        return parsed(path.read_bytes(), path)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read: {problem.strerror}.") from problem


def parsed(content: bytes, path: Path) -> dict[str, Any]:
    """The state in a file's bytes.  Raises CheckpointError, with what to do about it."""
    try:
        if damaged := zipfile.ZipFile(io.BytesIO(content)).testzip():  # torch.load verifies nothing
            raise zipfile.BadZipFile(f"{damaged} does not have its checksum")
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except UNREADABLE as problem:
        what = f"{path} ({len(content):,} bytes) is broken or no checkpoint"
        raise CheckpointError(f"{what}. {way_out(path)}") from problem
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} was not written by this Trainer. {way_out(path)}")
    return state


def way_out(path: Path) -> str:
    """What to do about a file that cannot be used."""
    best = path.with_name("best.pt")
    if path != best and best.exists():
        return f"To go on from the best model, copy {best} over it; to begin anew, remove it."
    return "Remove it, or move it away, to begin anew."
