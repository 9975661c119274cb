"""Answers to ``save_checkpoint``: how learners get it wrong, and ways to get it right.

The format of the file is theirs: some bring their own ``load_checkpoint``.
"""
# ruff: noqa (learners write like this)

import json
import os
import pathlib
import pickle
import shutil
import tempfile
import threading
import time
from time import sleep

import torch
import torch.distributed as dist
from harness import right, wrong


def everything(model, optimizer, epoch):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}


def write(state, path):
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)


def with_loader(load):
    """The other half of an answer: it takes the place of load_checkpoint."""
    globals()["load_checkpoint"] = load
    return lambda save: save


def load_pickle(path, model, optimizer):
    with open(path, "rb") as file:
        state = pickle.load(file)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


def load_json(path, model, optimizer):
    state = json.loads(pathlib.Path(path).read_text())
    for name, value in model.state_dict().items():
        value.copy_(torch.tensor(state["model"][name], dtype=value.dtype))
    optimizer.load_state_dict(pickle.loads(bytes.fromhex(state["optimizer"])))
    return state["epoch"]


def load_whole_objects(path, model, optimizer):
    saved_model, saved_optimizer, epoch = torch.load(path, weights_only=False)
    model.load_state_dict(saved_model.state_dict())
    optimizer.load_state_dict(saved_optimizer.state_dict())
    return epoch


def load_from_memory(path, model, optimizer):
    state = memory[str(path)]
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


def not_written_yet(path, model, optimizer):
    raise NotImplementedError


@wrong("save_checkpoint.every_rank_writes")
def every_rank_writes(path, model, optimizer, epoch):
    torch.save(everything(model, optimizer, epoch), path)
    dist.barrier()


@wrong("save_checkpoint.every_rank_writes")
@with_loader(load_pickle)
def every_rank_writes_its_own_temporary_file(path, model, optimizer, epoch):
    unfinished = f"{path}.{dist.get_rank()}"
    with open(unfinished, "wb") as file:
        pickle.dump(everything(model, optimizer, epoch), file)
    os.replace(unfinished, path)
    dist.barrier()


@wrong("save_checkpoint.from_another_folder")
def unfinished_in_the_current_folder(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(everything(model, optimizer, epoch), "unfinished.pt")
        os.replace("unfinished.pt", path)
    dist.barrier()


@wrong("save_checkpoint.from_another_folder")
def unfinished_where_temporary_files_lie(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        with tempfile.NamedTemporaryFile(delete=False) as file:
            torch.save(everything(model, optimizer, epoch), file)
        shutil.move(file.name, path)
    dist.barrier()


@wrong("save_checkpoint.returned_too_early")
def no_barrier(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        write(everything(model, optimizer, epoch), path)


@wrong("save_checkpoint.returned_too_early")
def the_barrier_comes_first(path, model, optimizer, epoch):
    dist.barrier()
    if dist.get_rank() == 0:
        write(everything(model, optimizer, epoch), path)


@wrong("save_checkpoint.returned_too_early")
def renames_after_the_barrier(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(everything(model, optimizer, epoch), f"{path}.new")
    dist.barrier()
    if dist.get_rank() == 0:
        os.replace(f"{path}.new", path)


@wrong("save_checkpoint.returned_too_early")
def sleeps_a_second(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        write(everything(model, optimizer, epoch), path)
    else:
        time.sleep(1.0)


@wrong("save_checkpoint.returned_too_early")
def sleeps_by_another_name(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        write(everything(model, optimizer, epoch), path)
    else:
        sleep(1.0)


@wrong("save_checkpoint.returned_too_early")
def in_a_thread_that_nobody_joins(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        state = everything(model, optimizer, epoch)

        def later():
            time.sleep(0.2)
            write(state, path)

        threading.Thread(target=later).start()
    dist.barrier()


@wrong("save_checkpoint.returned_too_early")
def waits_until_there_is_a_file(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        write(everything(model, optimizer, epoch), path)
    while not os.path.exists(path):
        time.sleep(0.01)


@wrong("save_checkpoint.written_in_place")
def straight_into_the_file(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(everything(model, optimizer, epoch), path)
    dist.barrier()


@wrong("save_checkpoint.old_file_destroyed")
@with_loader(load_pickle)
def renames_before_the_file_is_closed(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        file = open(f"{path}.new", "wb")
        pickle.dump(everything(model, optimizer, epoch), file)
        os.replace(f"{path}.new", path)
        file.close()
    dist.barrier()


@wrong("save_checkpoint.written_in_place")
def copies_over_the_old_file(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(everything(model, optimizer, epoch), f"{path}.new")
        shutil.copyfile(f"{path}.new", path)
        os.remove(f"{path}.new")
    dist.barrier()


@wrong("save_checkpoint.gap_between_old_and_new")
def removes_the_old_file_first(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(everything(model, optimizer, epoch), f"{path}.new")
        if os.path.exists(path):
            os.remove(path)
        os.rename(f"{path}.new", path)
    dist.barrier()


@wrong("save_checkpoint.gap_between_old_and_new")
def deletes_and_writes_anew(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        pathlib.Path(path).unlink(missing_ok=True)
        torch.save(everything(model, optimizer, epoch), path)
    dist.barrier()


@wrong("save_checkpoint.no_file")
def forgets_to_rename(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(everything(model, optimizer, epoch), f"{path}.tmp")
    dist.barrier()


@wrong("rounded")
def in_half_the_space(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        state = everything(model, optimizer, epoch)
        state["model"] = {
            n: t.float() if t.is_floating_point() else t for n, t in state["model"].items()
        }
        write(state, path)
    dist.barrier()


@wrong("exception", status="crash")
@with_loader(load_from_memory)
def remembers_it_in_memory(path, model, optimizer, epoch):
    global memory
    memory = {str(path): everything(model, optimizer, epoch)}
    if dist.get_rank() == 0:
        write(everything(model, optimizer, epoch), path)
    dist.barrier()


@wrong("save_checkpoint.load_missing")
@with_loader(not_written_yet)
def only_this_half(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        write(everything(model, optimizer, epoch), path)
    dist.barrier()


@right
def asks_now_and_then(path, model, optimizer, epoch):
    work = None
    if dist.get_rank() == 0:
        write(everything(model, optimizer, epoch), path)
    work = dist.barrier(async_op=True)
    while not work.is_completed():
        time.sleep(0.05)
    work.wait()


@right
def tells_each_rank_by_a_message(path, model, optimizer, epoch):
    word = torch.zeros(1)
    if dist.get_rank() == 0:
        write(everything(model, optimizer, epoch), path)
        for rank in range(1, dist.get_world_size()):
            dist.send(word, rank)
    else:
        dist.recv(word, 0)


@right
def pathlib_all_the_way(path, model, optimizer, epoch):
    path = pathlib.Path(path)
    if dist.get_rank() == 0:
        unfinished = path.with_name(path.name + ".part")
        torch.save(everything(model, optimizer, epoch), unfinished)
        unfinished.replace(path)
    dist.barrier()


@right
def in_a_folder_below(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as folder:
            unfinished = os.path.join(folder, "state.pt")
            torch.save(everything(model, optimizer, epoch), unfinished)
            os.replace(unfinished, path)
    dist.barrier()


@right
def a_temporary_file_and_fsync(path, model, optimizer, epoch):
    dist.barrier()
    if dist.get_rank() == 0:
        folder = os.path.dirname(os.path.abspath(path))
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            torch.save(everything(model, optimizer, epoch), file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(file.name, path)
    dist.barrier()


@right
@with_loader(load_json)
def as_json(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        state = {
            "model": {name: t.tolist() for name, t in model.state_dict().items()},
            "optimizer": pickle.dumps(optimizer.state_dict()).hex(),
            "epoch": epoch,
        }
        with open(str(path) + "~", "w") as file:
            json.dump(state, file)
        os.replace(str(path) + "~", path)
    message = [None]
    dist.broadcast_object_list(message, src=0)


@right
@with_loader(load_whole_objects)
def whole_objects(path, model, optimizer, epoch):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if dist.get_rank() == 0:
        write((model, optimizer, epoch), path)
    dist.barrier()


@right
def a_barrier_that_names_who_is_missing(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(obj=everything(model, optimizer, epoch), f=os.fsencode(path).decode() + ".tmp")
        pathlib.Path(f"{path}.tmp").rename(path)
    dist.monitored_barrier()


@right
def keeps_a_backup(path, model, optimizer, epoch):
    path = str(path)
    if dist.get_rank() == 0:
        torch.save(everything(model, optimizer, epoch), path + ".new")
        if os.path.exists(path):
            if os.path.exists(path + ".backup"):
                os.remove(path + ".backup")
            os.link(path, path + ".backup")
        os.replace(path + ".new", path)
    dist.barrier()
