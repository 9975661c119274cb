"""Checkpoints of which every rank writes its shard, with PyTorch's torch.distributed.checkpoint.

    TrainConfig(mode="zero3", checkpoints="sharded", folder="runs/text")

`latest` and `best` are links to folders: in each a file of every rank, the index `.metadata`, and
`run.pt` with everything of model and optimizer that is not a tensor, and with the digests of the
other files. A folder is written under a new name; then the link is replaced, which is atomic.
Folders without a link are left by killed runs. Any number of ranks can read them in any mode; in
zero2 and zero3 a rank reads only its share, in the other modes the whole model and optimizer. All
ranks must see the same folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
import warnings
from collections.abc import Iterator
from hashlib import file_digest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from multigpu.data.replacing import replace_file
from multigpu.training.checkpoint import (
    SHARDS,
    CheckpointError,
    Checkpoints,
    packed,
    read,
)
from multigpu.training.distributed import (
    all_gather_object,
    from_main_rank,
    in_a_group,
    main_rank_does,
)
from multigpu.training.strategy import Strategy

RUN, INDEX = "run.pt", ".metadata"


class ShardedCheckpoints(Checkpoints):
    """The checkpoints of one run, in one folder; each of them is a folder, too."""

    def __init__(self, folder: str | Path, *, strategy: Strategy, **how: Any) -> None:
        super().__init__(folder, **how)
        self.strategy = strategy

    def path(self, name: str = "latest") -> Path:
        return self.folder / name

    def save(self, state: dict[str, Any], *, best: bool = False) -> None:
        """Write `state`; tensors that are divided among the ranks stay divided."""
        model, rest_of_model = tensors_and_rest(state["model"])
        each = {k: tensors_and_rest(values) for k, values in state["optimizer"]["state"].items()}
        tensors = {"model": model, "optimizer": {k: own for k, (own, _) in each.items()}}
        numbers = {k: rest for k, (_, rest) in each.items()}
        optimizer = {**state["optimizer"], "state": numbers}
        rest = {**state, "model": rest_of_model, "optimizer": optimizer}
        shards = self.folder / from_main_rank(SHARDS.replace("*", uuid.uuid4().hex))
        try:
            with quiet_without_group():
                save(tensors, checkpoint_id=shards, no_dist=not in_a_group())
        except (CheckpointException, OSError) as problem:
            if self.launch.is_main:
                shutil.rmtree(shards, ignore_errors=True)
            raise CheckpointError(
                f"cannot write into {self.folder}: {reason(problem)}. Free some space or give "
                "another folder; earlier checkpoints there are still complete."
            ) from problem
        mine = [INDEX] if self.launch.is_main else []
        mine += [file.name for file in shards.glob(f"__{self.launch.rank}_*")]
        written = all_gather_object({name: digest(shards / name) for name in mine})
        rest["digests"] = {name: found for each in written for name, found in each.items()}
        names = self._names(state, best=best)
        main_rank_does(lambda: self._finish(rest, shards, names), error=CheckpointError)

    def load(self, name: str = "latest") -> dict[str, Any] | None:
        """The saved state, with this rank's shard of sharded tensors; None if there is none.

        Raises CheckpointError on every rank if it cannot be read, or not all ranks see it.
        """
        path = self.path(name)
        state, problem = None, None
        try:
            state = read(path / RUN)
            if state is not None:
                self._verify(path, state["digests"])
        except (CheckpointError, OSError) as error:
            problem = str(error)
        views = all_gather_object((problem, state and state["saved"]))
        for rank, (said, mark) in enumerate(views):
            if said:
                raise CheckpointError(said)
            if mark != views[0][1]:
                raise CheckpointError(
                    f"{path}: rank {rank} sees other files there than rank 0. Sharded checkpoints "
                    "need a folder that all machines share."
                )
        if state is None:
            return None
        metadata = FileSystemReader(path).read_metadata()
        plain = self.strategy.plain
        trained = [each for each in plain.parameters() if each.requires_grad]
        here: dict[str, dict[str, Any]] = {
            "model": plain.state_dict(),
            "optimizer": {str(number): each for number, each in enumerate(trained)},
        }
        tensors: dict[str, Any] = {"model": {}, "optimizer": {}}
        for key, (kind, name, *of_state) in (metadata.planner_data or {}).items():
            about: Any = metadata.state_dict_metadata[key]
            there, dtype = here[kind].get(str(name)), about.properties.dtype
            if isinstance(there, DTensor) and there.shape == about.size:  # read only this share
                place = torch.zeros_like(there, dtype=dtype, requires_grad=False)
            else:
                place = torch.empty(about.size, dtype=dtype)
            if of_state:
                tensors[kind].setdefault(name, {})[of_state[0]] = place
            else:
                tensors[kind][name] = place
        with quiet_without_group():
            load(tensors, checkpoint_id=path, no_dist=not in_a_group())
        for number, values in tensors["optimizer"].items():
            state["optimizer"]["state"].setdefault(int(number), {}).update(values)
        return {**state, "model": state["model"] | tensors["model"]}

    def _verify(self, folder: Path, digests: dict[str, str]) -> None:
        """Raise CheckpointError if a file has changed. Every rank checks some of them."""
        for name in sorted(digests)[self.launch.rank :: self.launch.world_size]:
            path = folder / name
            if not path.is_file() or digest(path) != digests[name]:
                raise CheckpointError(
                    f"{path} is broken or has another version. To begin again, remove {folder}."
                )

    def _finish(self, rest: dict[str, Any], shards: Path, names: list[str]) -> None:
        """Rank 0: what is not divided, and then the links."""
        content = packed({**rest, "saved": shards.name})
        try:
            replace_file(shards / RUN, content)
            for name in names:
                link = self.folder / f".{name}.{os.getpid()}.partial"
                link.unlink(missing_ok=True)
                link.symlink_to(shards.name, target_is_directory=True)
                os.replace(link, self.path(name))
                (self.folder / f"{name}.pt").unlink(missing_ok=True)  # an earlier, full checkpoint
            self._sweep()
        except OSError as problem:
            raise self._cannot_write(problem) from problem


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def tensors_and_rest(values: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors among `values`, which may be sharded, and the other values."""
    tensors = {key: value.detach() for key, value in values.items() if isinstance(value, Tensor)}
    return tensors, {key: value for key, value in values.items() if key not in tensors}


@contextlib.contextmanager
def quiet_without_group() -> Iterator[None]:
    """A single process may write and read such a checkpoint, too."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def reason(problem: BaseException) -> str:
    """The first rank's error, in one line, from PyTorch's combined error of all ranks."""
    if each := getattr(problem, "failures", None):
        rank, (error, _) = next(iter(each.items()))
        return f"rank {rank}: {error}"
    return str(problem)
