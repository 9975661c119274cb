"""Checkpoints: the state of a run, in one file that is always complete.

    with Checkpoints(Path("runs/digits"), launch=Launch.here()) as checkpoints:
        state = checkpoints.load()                # None: there is none yet
        checkpoints.save({"model": ..., "step": 400}, best=True)

A run resumes from `latest.pt`; `best.pt` had the best evaluation. Rank 0 writes into another file,
which then takes the name: `os.replace` is atomic, so a reader finds the old checkpoint or the new
one, whenever the writer is killed. `Trainer._state` makes the state. Without this package's help,
`torch.load("latest.pt")["model"]` is a state dict.

A run that resumes on the same ranks and devices ends with the same weights as one that was never
stopped, unless DataLoader workers transform rows at random. On another number of ranks or GPUs the
Trainer says what differs.
"""

from __future__ import annotations

import copy
import io
import os
import shutil
import socket
import uuid
import warnings
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch.utils._pytree import tree_leaves

from multigpu.data.replacing import replace_file
from multigpu.training.distributed import (
    Launch,
    all_gather_object,
    from_main_rank,
    main_rank_does,
)

FORMAT = "multigpu checkpoint 3"  # 3: it ends with a digest
DIGEST = 32  # bytes of a SHA-256
NAMES = ("latest.pt", "best.pt", "latest", "best")
LEFTOVERS = ".*.partial"  # what a killed writer leaves in the folder
SHARDS = ".shards-*"  # folders of sharded checkpoints; `latest` and `best` are links to them
LOCK = ".multigpu.lock"  # stays in the folder: removing it would let two processes lock two files
WAIT = 8.0  # seconds for a lock: DataLoader workers of a run that was killed end within five
SHOWN = 3  # parameters that a message names
WAY_OUT = "or give this run another folder, or begin again there with resume=False."


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read, or belongs to another run. Raised on every rank."""


class Checkpoints:
    """The checkpoints of one run, in one folder.

    Inside `with`, no other run writes into the folder, and half-written files of killed runs are
    removed. All ranks call `save` and `load` together; only `load` works without `with`.
    """

    def __init__(self, folder: str | Path, *, launch: Launch, keep_last: int | None = None) -> None:
        self.folder, self.launch, self.keep_last = Path(folder), launch, keep_last
        # The kernel gives the lock back when its process ends, however it ends.
        self._lock = FileLock(self.folder / LOCK)

    def __enter__(self) -> Checkpoints:
        """Raises CheckpointError if another run uses the folder, or it cannot be written."""
        main_rank_does(self._take_folder, error=CheckpointError)
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def path(self, name: str = "latest") -> Path:
        return self.folder / f"{name}.pt"

    def save(self, state: dict[str, Any], *, best: bool = False) -> None:
        """Write `state`, of plain values and tensors, and return when the file is complete.

        All ranks call it, and rank 0's `state` is written. `best`: also write it as `best.pt`.
        Raises CheckpointError on every rank when rank 0 could not write, and TypeError for a state
        that could not be loaded again.
        """
        main_rank_does(lambda: self._write(state, best=best), error=CheckpointError)

    def clear(self) -> None:
        """Remove the folder's checkpoints of both kinds, to start again. All ranks call it."""

        def remove() -> None:
            for path in [self.folder / name for name in NAMES] + self._by_step():
                path.unlink(missing_ok=True)
            self._sweep()

        main_rank_does(remove, error=CheckpointError)

    def load(self, name: str = "latest") -> dict[str, Any] | None:
        """The saved state with tensors on the CPU, the same on every rank; None if there is none.

        Ranks on other machines that do not see rank 0's file receive it. Raises CheckpointError on
        every rank for a file that is not a checkpoint, or if other ranks have a newer one than rank
        0.
        """
        path = self.path(name)
        state, problem = None, None
        try:
            state = read(path)
        except CheckpointError as error:
            problem = str(error)
        mark, step = (None, -1) if state is None else (state["saved"], state.get("step", 0))
        views = all_gather_object((problem, mark, step, socket.gethostname()))
        _, _, main_step, main_host = views[0]
        for rank, (problem, _, step, host) in enumerate(views):
            if problem:
                raise CheckpointError(problem)
            if step > main_step:
                raise CheckpointError(
                    f"{path}: rank {rank} on {host} has a newer checkpoint than rank 0 on "
                    f"{main_host}. Use a folder that all machines share, or copy the newer file to "
                    f"{main_host}."
                )
        if all(view[1] == views[0][1] for view in views):
            return state
        return parsed(from_main_rank(path.read_bytes() if self.launch.is_main else None), path)

    def _take_folder(self) -> None:
        """Lock the folder and remove the files that killed writers have left."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / LOCK).touch()  # says in the system's words where nothing can be written
        except OSError as problem:
            raise self._cannot_write(problem) from problem
        process = f"process {os.getpid()} on {socket.gethostname()}"
        try:
            self._lock.acquire(timeout=WAIT)
        except Timeout:
            owner = (self.folder / LOCK).read_text()
            owner = "another Trainer in this process" if owner.startswith(process) else owner
            raise CheckpointError(
                f"{self.folder} is in use by another run ({owner}). Wait until it ends, stop it, "
                "or give this run its own folder."
            ) from None
        except OSError as problem:
            warnings.warn(f"{self.folder} cannot be locked ({problem}).", stacklevel=2)
            return
        since = datetime.now().isoformat(sep=" ", timespec="seconds")
        (self.folder / LOCK).write_text(f"{process}, since {since}")
        self._sweep()

    def _sweep(self) -> None:
        """Remove the files of killed writers, and shards without a link to them."""
        for leftover in self.folder.glob(LEFTOVERS):
            leftover.unlink(missing_ok=True)
        for old in self._by_step()[: -self.keep_last] if self.keep_last else ():
            old.unlink()
        links = [self.folder / "latest", self.folder / "best", *self._by_step()]
        used = {link.resolve().name for link in links}
        for shards in self.folder.glob(SHARDS):
            if shards.name not in used:
                shutil.rmtree(shards, ignore_errors=True)

    def _by_step(self) -> list[Path]:
        """The checkpoints that are kept under their steps, the oldest first."""
        found = [path for path in self.folder.glob("step-*") if path.stem[5:].isdecimal()]
        # Not by step, because a run may have resumed from an earlier one.
        return sorted(found, key=lambda path: path.lstat().st_mtime_ns)

    def _names(self, state: dict[str, Any], *, best: bool) -> list[str]:
        """The names under which `state` is saved. `latest` comes last: a run that is killed in
        between resumes from the older one and finds the same best again."""
        by_step = [f"step-{state['step']}"] if self.keep_last else []
        return ["best"] * best + by_step + ["latest"]

    def _write(self, state: dict[str, Any], *, best: bool) -> None:
        content = packed({**state, "saved": uuid.uuid4().hex})
        try:
            for name in self._names(state, best=best):
                replace_file(self.path(name), content)
                if (link := self.folder / name).is_symlink():  # an earlier, sharded checkpoint
                    link.unlink()
            self._sweep()
        except OSError as problem:
            raise self._cannot_write(problem) from problem

    def _cannot_write(self, problem: OSError) -> CheckpointError:
        return CheckpointError(
            f"rank 0 on {socket.gethostname()} cannot write into {self.folder}: "
            f"{problem.strerror or problem}. Free some space or give the name of another folder; "
            "earlier checkpoints there are still complete."
        )


def read(path: Path) -> dict[str, Any] | None:
    """The state in a file; None if there is no file.  Raises CheckpointError."""
    try:
        return parsed(path.read_bytes(), path)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read: {problem.strerror}.") from problem


def parsed(content: bytes, path: Path) -> dict[str, Any]:
    """The state in a file's bytes.  Raises CheckpointError, which says what to do."""
    best = path.with_name("best.pt")
    way_out = "Remove it, or move it away, to begin again."
    if path != best and best.exists():
        way_out = f"To resume from the best model, copy {best} over it; to begin again, remove it."
    broken = CheckpointError(
        f"{path} ({len(content):,} bytes) is broken or is not a checkpoint. {way_out}"
    )
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as problem:  # whatever the bytes lead it to
        raise broken from problem
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path} was not written by this version of the Trainer. {way_out}")
    if sha256(content[:-DIGEST]).digest() != content[-DIGEST:]:  # torch.load verifies nothing
        raise broken
    return state


def packed(state: dict[str, Any]) -> memoryview:
    """The bytes of a file that `parsed` reads, and torch.load.

    A file of torch is a zip archive; its comment, which comes last, is the digest of all else.
    Raises TypeError for what could be saved but not loaded again with `weights_only=True`.
    """
    memory = io.BytesIO()  # torch.save into a file hides a full disk behind an error of its own
    state = {**state, "format": FORMAT}
    tensors = (leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor))
    # Not tree_map: a model's state carries its versions in an attribute, which a copy has, too.
    torch.save(copy.deepcopy(state, {id(tensor): on_cpu(tensor) for tensor in tensors}), memory)
    memory.seek(0)
    if unsafe := torch.serialization.get_unsafe_globals_in_checkpoint(memory):
        raise TypeError(
            f"the state has objects of {', '.join(unsafe)}: a checkpoint takes only tensors, "
            "numbers, strings, lists, tuples and dicts. Convert them first, for example with "
            "float(...)."
        )
    memory.seek(-2, io.SEEK_END)
    memory.write(DIGEST.to_bytes(2, "little"))  # the length of the comment: it was 0
    memory.write(sha256(memory.getbuffer()).digest())
    return memory.getbuffer()


def refuse_other_run(saved: Mapping[str, Any], now: Mapping[str, Any], *, path: Path) -> None:
    """Raise CheckpointError if a checkpoint was `saved` with other settings than `now`."""
    changed = [
        f"{name}={saved[name]!r} (now {value!r})"
        for name, value in now.items()
        if saved[name] != value
    ]
    if changed:
        raise CheckpointError(
            f"{path} belongs to a run with {', '.join(changed)}. Use the same data and settings, "
            f"{WAY_OUT}"
        )


def refuse_other_model(saved: Mapping[str, Any], shapes: Mapping[str, Any], *, path: Path) -> None:
    """Raise CheckpointError if a checkpoint's weights have other names or shapes than a model's.

    It is raised on every rank, even if a rank loads only some of them.
    """
    found = shapes_of(saved)
    problems = [
        f"{name} is {found.get(name, 'missing')} there but {shapes.get(name, 'missing')} here"
        for name in {**found, **shapes}
        if found.get(name) != shapes.get(name)
    ]
    if problems:
        more = f", and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise CheckpointError(
            f"{path} belongs to another model: {'; '.join(problems[:SHOWN])}{more}. Build the "
            f"same model, {WAY_OUT}"
        )


def shapes_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """The shapes of a state dict's tensors; a module may keep other things in its state, too."""
    return {
        name: tuple(value.shape) if isinstance(value, torch.Tensor) else "not a tensor"
        for name, value in state.items()
    }


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the CPU, without its graph; of a view only the part that it shows."""
    tensor = tensor.detach().cpu()
    is_view = tensor.layout is torch.strided and tensor.untyped_storage().nbytes() > tensor.nbytes
    return tensor.clone() if is_view else tensor  # a view would be saved with its whole storage
