"""Trainings that are saved, stopped and resumed.  They travel into the ranks."""

import operator
import os
import pathlib
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

from multigpu.checking.comparing import WIDTH, Specimen
from multigpu.ranks import rank_device

from .interrupting import Lookout, die_after, fingerprint, short_sleeps, slow

BEFORE, AFTER = 3, 3  # steps


@dataclass(frozen=True)
class Case:
    """One training and its checkpoint.  ``as_path``: the path is a Path and not a str."""

    file: str
    optimizer: str
    epoch: int
    as_path: bool = False
    is_slow: bool = False

    def path_in(self, folder):
        path = pathlib.Path(folder, self.file)
        return path if self.as_path else str(path)


CASES = [
    Case("last.pt", "SGD", 4),
    Case("epoch-17.checkpoint", "Adam", 17, as_path=True, is_slow=True),
]


def training(kind, seed, device="cpu"):
    """A model and an optimizer; all that a checkpoint holds depends on ``seed``."""
    model = Specimen(seed=seed)
    model.position.copy_(Specimen(seed=1).position)  # not in state_dict(): made, never saved
    model = model.to(device)
    if kind == "SGD":
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    biases = [p for p in model.parameters() if p.ndim < 2]
    weights = [p for p in model.parameters() if p.ndim == 2]
    groups: list[dict[str, Any]] = [{"params": weights, "lr": 0.05}, {"params": biases}]
    return model, torch.optim.Adam(groups, lr=0.02)


def train(model, optimizer, steps):
    """Do these steps of the training: all ranks use the same rows, so nothing has to be sent."""
    device = next(model.parameters()).device
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        inputs, targets = (
            torch.randn(5, WIDTH, generator=generator, dtype=torch.float64).to(device) for _ in "xy"
        )
        optimizer.zero_grad()
        mse_loss(model(inputs), targets).backward()
        optimizer.step()


def trained_before(kind, device="cpu"):
    """A training at the moment of its checkpoint; by then the learning rate has been lowered."""
    model, optimizer = training(kind, 1, device)
    train(model, optimizer, range(BEFORE))
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    return model, optimizer


def state_of(model, optimizer):
    """What a checkpoint has to bring back, and what shows that it did."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "tensors": {name: tensor.detach().clone() for name, tensor in tensors.items()},
        "learning rates": [float(group["lr"]) for group in optimizer.param_groups],
    }


def save_all(submission, folder, cases):
    """Train and save each case; tell what this rank sees at the path when it may go on."""
    rank, notes = dist.get_rank(), []
    lookout = Lookout(rank)
    for case in cases:
        model, optimizer = trained_before(case.optimizer, rank_device())
        path = case.path_in(folder)
        old = open(path, "rb") if os.path.exists(path) else None  # noqa: SIM115
        with lookout.watching(path):
            if case.is_slow and rank == 0:
                with slow():
                    submission.save_checkpoint(path, model, optimizer, case.epoch)
            elif rank > 0:
                with short_sleeps(submission):
                    submission.save_checkpoint(path, model, optimizer, case.epoch)
            else:
                submission.save_checkpoint(path, model, optimizer, case.epoch)
        notes.append(
            {
                "seen": fingerprint(path),
                "gap": lookout.gap,
                "from_afar": lookout.from_afar,
                "old": None if old is None else old.read().hex(),
                "state": state_of(model, optimizer),
            }
        )
        train(model, optimizer, range(BEFORE, BEFORE + AFTER))
        notes[-1]["end"] = state_of(model, optimizer)
    return notes


def save_and_die(submission, folder, case, bytes_written):
    """Save once more, and die while the file is written."""
    model, optimizer = trained_before(case.optimizer, rank_device())
    die_after(bytes_written)
    submission.save_checkpoint(case.path_in(folder), model, optimizer, case.epoch)


def load_all(submission, folder, cases):
    """Load each case into a new training, go on with it, and tell what it came to."""
    notes = []
    for case in cases:
        model, optimizer = training(case.optimizer, 10 + dist.get_rank(), rank_device())
        objects = list(model.parameters())
        returned = submission.load_checkpoint(case.path_in(folder), model, optimizer)
        note = {
            "returned": returned,
            "kept": all(map(operator.is_, model.parameters(), objects)),
            "state": state_of(model, optimizer),
        }
        train(model, optimizer, range(BEFORE, BEFORE + AFTER))
        notes.append(note | {"end": state_of(model, optimizer)})
    return notes
