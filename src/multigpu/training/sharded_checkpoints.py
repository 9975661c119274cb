"""Checkpoints that every rank writes its share of, with PyTorch's torch.distributed.checkpoint.

    TrainConfig(mode="zero3", checkpoints="sharded", folder="runs/text")

No rank ever holds the whole model. `latest` and `best` are links to folders: in each a file of
every rank, the index `.metadata`, and `run.pt` with all that is no tensor of model and optimizer.
A folder is written under a name of its own; then the link is replaced, which is atomic. Folders
that no link leads to are what killed runs have left.

Any number of ranks reads them, in any mode: each reads what it needs. All ranks must see the same
folder. To make one file of it without this package:
`torch.distributed.checkpoint.format_utils.dcp_to_torch_save("runs/text/latest", "whole.pt")`.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import shutil
import uuid
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from multigpu.training.agreement import everyones, from_main_rank, in_a_group, main_rank_does
from multigpu.training.atomic_file import replace_file
from multigpu.training.checkpoints import FORMAT, SHARES, CheckpointError, Checkpoints, read
from multigpu.training.plain_state import plain

if TYPE_CHECKING:
    from multigpu.training.launch import Launch

# Of a tensor in a checkpoint (its key, shape and type): where this rank reads its share into.
Place = Callable[[str, torch.Size, torch.dtype], Tensor]
RUN = "run.pt"


class ShardedCheckpoints(Checkpoints):
    """The checkpoints of one run, in one folder; each of them is a folder, too."""

    def __init__(self, folder: str | Path, *, launch: Launch, place: Place) -> None:
        super().__init__(folder, launch=launch)
        self.place = place

    def path(self, name: str = "latest") -> Path:
        return self.folder / name

    def save(self, state: dict[str, Any], *, name: str = "latest", best: bool = False) -> None:
        """Write `state`; tensors that are divided among the ranks stay divided."""
        if not self._entered:
            with self:
                return self.save(state, name=name, best=best)
        tensors, rest = apart(state)
        shares = self.folder / from_main_rank(f"{SHARES}{uuid.uuid4().hex}")
        main_rank_does(lambda: self._make(shares), error=CheckpointError)
        self._write_shares(tensors, shares)
        names = ("best", name) if best else (name,)
        main_rank_does(lambda: self._finish(rest, shares, names), error=CheckpointError)

    def load(self, name: str = "latest") -> dict[str, Any] | None:
        """The saved state, this rank's share of what `place` divides; None where there is none.

        Raises CheckpointError on every rank where it cannot be read, or not all ranks see it.
        """
        state, problem = None, None
        try:
            state = read(self.path(name) / RUN)
        except CheckpointError as error:
            problem = str(error)
        views = everyones((problem, state and state["saved"]))
        for rank, (said, mark) in enumerate(views):
            if said:
                raise CheckpointError(said)
            if mark != views[0][1]:
                raise CheckpointError(
                    f"{self.path(name)}: rank {rank} does not see what rank 0 sees. Sharded "
                    "checkpoints need a folder that all machines share."
                )
        return None if state is None else self._with_tensors(state, self.path(name))

    def _with_tensors(self, state: dict[str, Any], path: Path) -> dict[str, Any]:
        """`state` as it was before `apart`."""
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata
        from torch.distributed.checkpoint.state_dict_loader import load

        try:
            reader = FileSystemReader(path)
            known = reader.read_metadata().state_dict_metadata
            tensors = {
                key: self.place(key, about.size, about.properties.dtype)
                for key, about in known.items()
                if isinstance(about, TensorStorageMetadata)
            }
            with quiet_alone():
                load(tensors, storage_reader=reader, no_dist=not in_a_group())
        except (CheckpointException, OSError, EOFError, pickle.UnpicklingError) as problem:
            raise CheckpointError(
                f"{path} is broken: {reason(problem)}. To begin anew, remove it."
            ) from problem
        return together(tensors, state)

    def _make(self, shares: Path) -> None:
        try:
            shares.mkdir()
        except OSError as problem:
            raise self._cannot_write(problem) from problem

    def _write_shares(self, tensors: dict[str, Tensor], shares: Path) -> None:
        """Every rank's share.  Raises CheckpointError on every rank."""
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        try:
            with quiet_alone():
                save(tensors, storage_writer=FileSystemWriter(shares), no_dist=not in_a_group())
        except (CheckpointException, OSError) as problem:
            if self.launch.is_main:
                shutil.rmtree(shares, ignore_errors=True)
            raise CheckpointError(
                f"cannot write into {self.folder}: {reason(problem)}. Make room or give another "
                "folder; what was saved there before is still whole."
            ) from problem

    def _finish(self, rest: dict[str, Any], shares: Path, names: tuple[str, ...]) -> None:
        """Rank 0: what is not divided, and then the links. `best` comes first, as in one file."""
        memory = io.BytesIO()
        torch.save(plain({**rest, "format": FORMAT, "saved": shares.name}), memory)
        try:
            replace_file(shares / RUN, memory.getbuffer())
            for name in names:
                link = self.folder / f".{name}.{os.getpid()}.partial"
                link.unlink(missing_ok=True)
                link.symlink_to(shares.name, target_is_directory=True)
                os.replace(link, self.path(name))
                (self.folder / f"{name}.pt").unlink(missing_ok=True)  # of the time before
            self.sweep()
        except OSError as problem:
            raise self._cannot_write(problem) from problem


def apart(state: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of model and optimizer by flat names, and the rest, with their order.

    ``model/0.weight``, ``optimizer/3/exp_avg``: parameter 3's running mean under Adam.
    """
    model, optimizer = state["model"], state["optimizer"]
    tensors = {f"model/{key}": value for key, value in model.items() if isinstance(value, Tensor)}
    others = {key: value for key, value in model.items() if not isinstance(value, Tensor)}
    numbers: dict[int, dict[str, Any]] = {}
    for number, values in optimizer["state"].items():
        numbers[number] = {}
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{number}/{name}"] = value
            else:
                numbers[number][name] = value
    rest = {**state, "model": others, "optimizer": {**optimizer, "state": numbers}}
    return {key: value.detach() for key, value in tensors.items()}, {**rest, "names": [*model]}


def together(tensors: dict[str, Tensor], rest: dict[str, Any]) -> dict[str, Any]:
    """What `apart` took apart."""
    state = {key: value for key, value in rest.items() if key != "names"}
    state["model"] = OrderedDict(
        (name, tensors.get(f"model/{name}", rest["model"].get(name))) for name in rest["names"]
    )
    for key, value in tensors.items():
        kind, _, place = key.partition("/")
        if kind == "optimizer":
            number, _, name = place.partition("/")
            state["optimizer"]["state"].setdefault(int(number), {})[name] = value
    return state


@contextlib.contextmanager
def quiet_alone() -> Iterator[None]:
    """PyTorch warns where there is no process group; here that is no mistake."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def reason(problem: BaseException) -> str:
    """The first rank's error, in one line, of an error that PyTorch has made of all ranks'."""
    each = getattr(problem, "failures", None)
    if each:
        rank, (error, _) = next(iter(each.items()))
        return f"rank {rank}: {error}"
    return str(problem)
