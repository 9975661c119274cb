"""``distributed_data_parallel.save_checkpoint``: one writer, one whole file."""

import os
import pathlib
import pickle
import threading

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise

from .resumed_training import OLD, raised_by_drive, resumes

save_checkpoint = exercise(
    "distributed_data_parallel.save_checkpoint",
    expects="after load_checkpoint every rank continues as if training had never stopped",
)
resumes(save_checkpoint)


def looks_at_file(name, told, *, expects, usually, fix):
    """A property of the file: ``told(seen, rank)`` is what came, or nothing."""

    @save_checkpoint.holds(name, expects=expects, usually=usually, fix=fix, first=True)
    def _(run, case):
        for rank, came in enumerate(run.came(case)):
            words = told(came["watched"], rank)
            if words:
                return words, run.where(rank)
        return None


looks_at_file(
    "returned_too_early",
    lambda seen, rank: seen["early"] and f"rank {rank} returned, and it was not at the path yet",
    expects="the new file is complete when save_checkpoint returns, on every rank",
    usually="nothing makes the other ranks wait for rank 0, or they wait before it writes."
    " time.sleep does not help, however long: rank 0 may need longer, so here it is cut short.",
    fix="dist.barrier() after the file has its name.",
)
looks_at_file(
    "gap_between_old_and_new",
    lambda seen, rank: seen["gap"] and "for a while there was none",
    expects="at every moment the old file or the new one is at the path",
    usually="the old file was removed or renamed first.",
    fix="os.replace puts the new one in its place in one step.",
)
looks_at_file(
    "from_another_folder",
    lambda seen, rank: seen["from_afar"] and f"{seen['from_afar']} was renamed to the path",
    expects="the new file is written in the folder of the path, or below it, and renamed there",
    usually="a file is renamed in one step only within one file system. On a cluster the current"
    " folder or /tmp is often on another one, and two jobs there take each other's file.",
    fix='f"{{path}}.unfinished" is beside the path.',
)
looks_at_file(
    "written_in_place",
    lambda seen, rank: seen["overwritten"] and "the new checkpoint was written into the old file",
    expects="the old file stays whole until the new one takes its place",
    usually="open, torch.save or copy on the path itself empty the old file first: a job that is"
    " killed meanwhile has neither.",
    fix="Write to another name in the same folder, then os.replace.",
)
looks_at_file(
    "old_file_destroyed",
    lambda seen, rank: (
        seen["full"] is not None
        and f"{seen['full']} bytes are at the path, and {len(OLD)} were there before"
    ),
    expects="when the disk is full before the file is complete, the old one stays at the path",
    usually="the unfinished file had the path's name already: it was renamed before it was closed,"
    " or written there.",
    fix="Write to another name in the same folder, close the file, then os.replace.",
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


def load_optimizer_only(path, model, optimizer):
    state = torch.load(path)
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


def load_on_rank_0(path, model, optimizer):
    state = torch.load(path)
    if dist.get_rank() == 0:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
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


# --- right answers -------------------------------------------------------------------------------


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


# --- mistakes ------------------------------------------------------------------------------------


@save_checkpoint.mistake(
    "optimizer_lost",
    "training continues as with a new optimizer: its state was not saved, or load_checkpoint did"
    " not load it.",
    fix="optimizer.state_dict() holds momentum, step counts and learning rates.",
)
@with_loader(load_model_only)
def without_the_optimizer(path, model, optimizer, epoch):
    write({"model": model.state_dict(), "epoch": epoch}, path)


@save_checkpoint.mistake(
    "model_not_loaded",
    "the model is as new: load_checkpoint did not write what was saved into the model that it was"
    " given.",
    fix="model.load_state_dict(...) writes the numbers into it.",
)
@with_loader(load_optimizer_only)
def with_all_that_is_needed(path, model, optimizer, epoch):
    write(everything(model, optimizer, epoch), path)


@save_checkpoint.mistake(
    "other_ranks_not_loaded",
    "in load_checkpoint only rank 0 loads.",
    fix="Every rank reads the file, or rank 0 sends all that it has read.",
)
@with_loader(load_on_rank_0)
def with_all_that_rank_0_needs(path, model, optimizer, epoch):
    write(everything(model, optimizer, epoch), path)


@save_checkpoint.mistake(
    "buffers_lost",
    "only parameters were saved, or load_checkpoint loads only these. Buffers are a part of the"
    " model too.",
    fix="model.state_dict() holds both.",
)
@with_loader(load_parameters)
def without_the_buffers(path, model, optimizer, epoch):
    state = everything(model, optimizer, epoch)
    write(state | {"parameters": [p.detach() for p in model.parameters()]}, path)


@save_checkpoint.mistake(
    "frozen_lost",
    "parameters with requires_grad=False were not saved, or load_checkpoint left them out. A new"
    " model has other numbers there.",
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
