# style: careful: NamedTemporaryFile in the same folder, fsync, clean-up, and errors reach every rank
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def _write(path: Path, state: object) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            os.unlink(file.name)
            raise
    os.replace(file.name, path)


def save_checkpoint(path, model: nn.Module, optimizer, epoch: int) -> None:
    path = Path(path)
    problem = [None]
    error = None
    if dist.get_rank() == 0:
        try:
            _write(path, (model.state_dict(), optimizer.state_dict(), epoch))
        except Exception as caught:
            error = caught
            problem = [repr(caught)]
    dist.broadcast_object_list(problem, src=0)
    if error is not None:
        raise error
    if problem[0] is not None:
        raise RuntimeError(f"rank 0 could not save: {problem[0]}")


def load_checkpoint(path, model: nn.Module, optimizer) -> int:
    weights, steps, epoch = torch.load(Path(path), map_location="cpu")
    model.load_state_dict(weights)
    optimizer.load_state_dict(steps)
    return epoch
