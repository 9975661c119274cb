"""Training that is saved, stopped and resumed: what both checkpoint exercises have in common.

The two functions are judged as a pair, because the format of the file is the learner's.  Of the
function that is not checked a second copy of the module is used, which stands for another process:
nothing but the file can bring the numbers from one to the other.

``resumes(exercise)`` gives a declaration its cases, its drive, and what must come back.
"""

import contextlib
import os
import pathlib
import resource
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

from multigpu.checking.declaration import Broken, case
from multigpu.checking.running import again
from multigpu.checking.specimen import WIDTH, Specimen
from multigpu.ranks import rank_device
from multigpu.ranks.errors import counted, listed

from .watched_files import content, lookout_of, short_sleeps, slow

BEFORE, AFTER = 3, 3  # steps
OLD = b"an older checkpoint " * 100
PATIENCE = 0.5  # seconds, for a file that a thread may still write
RUNS = []  # one entry for each run of this process
GROUPS = []  # of all ranks, for our own messages: the learner's cannot be taken for them

# --- cases ---------------------------------------------------------------------------------------


def cases():
    for world in (3, 2, 4, 1):
        yield a_case(world, "last.pt", "SGD", 4)
        yield a_case(world, "epoch-17.checkpoint", "Adam", 17, as_path=True, over_old=True)


def a_case(world, file, optimizer, epoch, *, as_path=False, over_old=False):
    """``as_path``: the path is a Path and not a str.  ``over_old``: slowly, over an old file."""
    title = f"{counted(world, 'rank')}, {optimizer}, {'Path' if as_path else 'str'} {file}"
    own = {"file": file, "optimizer": optimizer, "epoch": epoch}
    return case(title, world=world, as_path=as_path, over_old=over_old, **own)


# --- training ------------------------------------------------------------------------------------


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


def state_of(model, optimizer, moment):
    """What a checkpoint has to bring back, and what shows that it did."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    state = {f"{moment}: {name}": t.detach().clone() for name, t in tensors.items()}
    for number, group in enumerate(optimizer.param_groups):
        state[f"{moment}: learning rate of group {number}"] = float(group["lr"])
    return state


def expected(case):
    """On every rank what training has that was never stopped."""
    model, optimizer = trained_before(case.optimizer)
    right = {"the result": case.epoch} | state_of(model, optimizer, "after loading")
    train(model, optimizer, range(BEFORE, BEFORE + AFTER))
    right |= state_of(model, optimizer, f"{AFTER} steps later")
    return [right] * case.world


# --- one rank's run ------------------------------------------------------------------------------


def drive_of(name):
    """Save with one copy of the learner's module, load with another: ``name`` is checked."""

    def drive(submission, case, rank):
        RUNS.append(case)  # on all ranks the same number of runs, so all have the same folder
        folder = pathlib.Path("..", f"run-{len(RUNS)}").resolve()
        folder.mkdir(exist_ok=True)
        path = folder / case.file if case.as_path else str(folder / case.file)
        other = again(submission)
        saver, loader = (submission, other) if name == "save_checkpoint" else (other, submission)
        try:
            seen = saved(saver, case, rank, path)
        except NotImplementedError:
            if saver is submission:
                raise
            with contextlib.suppress(OSError):
                loader.load_checkpoint(path, *training(case.optimizer, 1))  # if it is written
            raise Broken("save_missing", "save_checkpoint is not written yet") from None
        model, optimizer = training(case.optimizer, 10 + rank, rank_device())
        try:
            epoch = loader.load_checkpoint(path, model, optimizer)
        except NotImplementedError:
            if loader is submission:
                raise
            raise Broken("load_missing", "load_checkpoint is not written yet") from None
        came = {"the result": epoch} | state_of(model, optimizer, "after loading")
        train(model, optimizer, range(BEFORE, BEFORE + AFTER))
        came |= state_of(model, optimizer, f"{AFTER} steps later")
        meet()
        full = case.world == 1 and case.over_old
        seen["full"] = on_a_full_disk(saver, case, path) if full else None
        return came | {"watched": seen}

    return drive


def saved(submission, case, rank, path):
    """Save once; what this rank sees at the path when it may go on, and what rank 0 did."""
    model, optimizer = trained_before(case.optimizer, rank_device())
    lookout = lookout_of(rank)
    old = None
    if case.over_old and rank == 0:
        pathlib.Path(path).write_bytes(OLD)
        old = open(path, "rb")  # noqa: SIM115
    meet()
    with contextlib.ExitStack() as stack:
        stack.enter_context(lookout.watching(path))
        if case.over_old and rank == 0:
            stack.enter_context(slow())
        if rank > 0:
            stack.enter_context(short_sleeps(submission))
        submission.save_checkpoint(path, model, optimizer, case.epoch)
    now = content(path)
    meet()
    patience = time.monotonic() + PATIENCE
    while content(path) in (None, OLD) and time.monotonic() < patience:
        time.sleep(0.01)  # a thread may still write
    if content(path) in (None, OLD):
        there = listed(sorted(os.listdir(os.path.dirname(path)))) or "no files"
        stale = ", the old one" if content(path) == OLD else ""
        raise Broken("no_file", f"in the folder are {there}{stale}")
    return {
        "early": now != content(path),
        "gap": lookout.gap,
        "from_afar": lookout.from_afar,
        "overwritten": old is not None and old.read() != OLD,
    }


def meet():
    """Wait until all ranks are here."""
    if not GROUPS:
        GROUPS.append(dist.new_group())
    dist.barrier(group=GROUPS[0])


def on_a_full_disk(submission, case, path):
    """Save once more where no file can be written to its end; how much is then at the path.

    None if that is the old file.
    """
    half = os.path.getsize(path) // 2
    pathlib.Path(path).write_bytes(OLD)
    model, optimizer = trained_before(case.optimizer, rank_device())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (half, before[1]))
    try:
        with contextlib.suppress(Exception):
            submission.save_checkpoint(path, model, optimizer, case.epoch)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    now = content(path)
    return None if now == OLD else len(now or b"")


# --- what both promise ---------------------------------------------------------------------------


def resumes(exercise):
    """Cases, drive and right results; a rank other than 0 never writes."""
    exercise.cases(cases)
    exercise.drive(drive_of(exercise.function))
    exercise.expected(expected)

    raised_by_drive(
        exercise,
        "every_rank_writes",
        expects="only rank 0 writes; the other ranks wait until the file is complete",
        usually="`if dist.get_rank() == 0:` is missing in save_checkpoint.",
        fix="Ranks that write one file at the same time garble it: let rank 0 write alone.",
    )
    raised_by_drive(
        exercise,
        "no_file",
        expects="a new file is at the path that was given",
        usually="the file was written under another name and never renamed to the path, or an old"
        " file was left there.",
        fix="os.replace(unfinished, path) renames it.",
    )


def raised_by_drive(exercise, name, **sentences):
    """A property without which nothing comes back: the drive raises Broken."""

    @exercise.holds(name, **sentences)
    def _(run, case):
        return None
