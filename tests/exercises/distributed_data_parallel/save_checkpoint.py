"""``distributed_data_parallel.save_checkpoint``: one writer, one whole file."""

import os
import pathlib
import pickle
import threading
from functools import partial

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise
from multigpu.checking.probes import noted_on_each_rank

from .resumed_training import OLD, raised_by_drive, resumes

save_checkpoint = exercise(
    "distributed_data_parallel.save_checkpoint",
    expects="after load_checkpoint every rank continues as if training had never stopped",
)
resumes(save_checkpoint)


noted = partial(noted_on_each_rank, save_checkpoint)
noted(
    "returned_too_early",
    lambda seen, case: seen["early"] and "it was not at the path yet after save_checkpoint",
    expects="the new file is complete when save_checkpoint returns, on every rank",
    usually="nothing makes the other ranks wait for rank 0, or they wait before it writes."
    " time.sleep does not help, however long: rank 0 may need longer, so here it is cut short.",
    fix="dist.barrier() after the file has its name.",
)
noted(
    "from_another_folder",
    lambda seen, case: seen["from_afar"] and f"{seen['from_afar']} was renamed to the path",
    expects="the new file is written in the folder of the path, or below it, and renamed there",
    usually="a file is renamed in one step only within one file system. On a cluster the current"
    " folder or /tmp is often on another one, and two jobs there take each other's file.",
    fix='f"{{path}}.unfinished" is beside the path.',
)


def destroyed(seen, case):
    """How the old file was lost before the new one was complete."""
    if seen["overwritten"]:
        return "the new checkpoint was written into the old file"
    if seen["full"] is not None:
        return f"{seen['full']} bytes are at the path, and {len(OLD)} were there before"
    return seen["gap"] and "for a while there was none"


noted(
    "old_file_destroyed",
    destroyed,
    expects="the old file stays whole at the path until the new one takes its place, also when the"
    " disk is full before that",
    usually="the old file was removed or renamed first; open, torch.save or copy on the path itself"
    " emptied it; or the new one was renamed before it was closed. A job that is killed meanwhile"
    " has neither.",
    fix="Write to another name in the same folder, close the file, then os.replace: that puts the"
    " new one in its place in one step.",
)
raised_by_drive(
    save_checkpoint,
    "load_missing",
    expects="load_checkpoint reads the file",
    usually="the two are judged as a pair, because the format of the file is yours.",
    fix="Write both.",
)


# --- what answers are made of --------------------------------------------------------------------


def everything(model, optimizer, epoch):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}


def write(state, path):
    """On rank 0 only, and the others wait."""
    if dist.get_rank() == 0:
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)
    dist.barrier()


def with_loader(load):
    """The other half of an answer: it takes the place of load_checkpoint."""
    globals()["load_checkpoint"] = load
    return lambda save: save


def load_pickle(path, model, optimizer):
    state = pickle.loads(pathlib.Path(path).read_bytes())
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


def load_model_only(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    return state["epoch"]


def load_parameters(path, model, optimizer):
    state = torch.load(path)
    with torch.no_grad():
        for p, saved in zip(model.parameters(), state["parameters"]):
            p.copy_(saved)
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


def load_loosely(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"], strict=False)
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@save_checkpoint.right
def in_a_thread(path, model, optimizer, epoch):
    if dist.get_rank() == 0:

        def save():
            torch.save(everything(model, optimizer, epoch), f"{path}.new")
            pathlib.Path(f"{path}.new").replace(path)

        thread = threading.Thread(target=save)
        thread.start()
        thread.join()
    dist.barrier(async_op=True).wait()


@save_checkpoint.right
@with_loader(load_pickle)
def as_pickle(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        with open(f"{path}.tmp", "wb") as file:
            pickle.dump(everything(model, optimizer, epoch), file)
        os.rename(f"{path}.tmp", path)
    dist.all_reduce(torch.zeros(1))


@save_checkpoint.mistake(
    "optimizer_lost",
    "training continues as with a new optimizer: its state was not saved, or not loaded.",
    fix="optimizer.state_dict() holds momentum, step counts and learning rates.",
)
@with_loader(load_model_only)
def without_the_optimizer(path, model, optimizer, epoch):
    write({"model": model.state_dict(), "epoch": epoch}, path)


@save_checkpoint.mistake(
    "buffers_lost",
    "only parameters were saved or loaded. Buffers are a part of the model too.",
    fix="model.state_dict() holds both.",
)
@with_loader(load_parameters)
def without_the_buffers(path, model, optimizer, epoch):
    state = everything(model, optimizer, epoch)
    write(state | {"parameters": [p.detach() for p in model.parameters()]}, path)


@save_checkpoint.mistake(
    "frozen_lost",
    "parameters with requires_grad=False were not saved or not loaded, and a new model has others.",
    fix="Save and load the whole model.state_dict().",
)
@with_loader(load_loosely)
def without_frozen_parameters(path, model, optimizer, epoch):
    state = everything(model, optimizer, epoch)
    for name, p in model.named_parameters():
        if not p.requires_grad:
            del state["model"][name]
    write(state, path)


@save_checkpoint.mistake(
    "other_epoch",
    "the next epoch was saved, or load_checkpoint returned the next one.",
    fix="Save and return the number as it is: the caller adds 1.",
)
def counts_the_next_epoch(path, model, optimizer, epoch):
    write(everything(model, optimizer, epoch + 1), path)


@save_checkpoint.mistake(
    "path_not_a_str",
    "the path can be a pathlib.Path, to which no text can be added.",
    fix='os.fspath(path) makes a str of both, and so does f"{{path}}.unfinished".',
    status="crash",
)
def knows_only_str(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(everything(model, optimizer, epoch), path + ".tmp")
        os.replace(path + ".tmp", path)
    dist.barrier()


@save_checkpoint.mistake(
    "barrier_on_rank_0_only",
    "rank 0 waits in a barrier that no other rank reaches: it is inside the `if`.",
    fix="Every rank calls dist.barrier(), after the `if`.",
    status="hang",
)
def the_barrier_is_under_the_if(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(everything(model, optimizer, epoch), f"{path}.new")
        os.replace(f"{path}.new", path)
        dist.barrier()


@save_checkpoint.breaks("every_rank_writes")
def does_not_ask_for_its_rank(path, model, optimizer, epoch):
    torch.save(everything(model, optimizer, epoch), path)
    dist.barrier()


@save_checkpoint.breaks("returned_too_early")
def no_barrier(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(everything(model, optimizer, epoch), f"{path}.new")
        os.replace(f"{path}.new", path)


@save_checkpoint.breaks("old_file_destroyed")
def straight_into_the_file(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(everything(model, optimizer, epoch), path)
    dist.barrier()


@save_checkpoint.breaks("from_another_folder")
def unfinished_in_the_current_folder(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(everything(model, optimizer, epoch), "unfinished.pt")
        os.replace("unfinished.pt", path)
    dist.barrier()


@save_checkpoint.breaks("old_file_destroyed")
def removes_the_old_file_first(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(everything(model, optimizer, epoch), f"{path}.new")
        pathlib.Path(path).unlink(missing_ok=True)
        os.rename(f"{path}.new", path)
    dist.barrier()


@save_checkpoint.breaks("old_file_destroyed")
@with_loader(load_pickle)
def renames_before_the_file_is_closed(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        with open(f"{path}.new", "wb") as file:
            pickle.dump(everything(model, optimizer, epoch), file)
            os.replace(f"{path}.new", path)
    dist.barrier()


@save_checkpoint.breaks("no_file")
def forgets_to_rename(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(everything(model, optimizer, epoch), f"{path}.tmp")
    dist.barrier()
