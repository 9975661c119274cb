"""Answers to ``save_checkpoint`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import io
import json
import os
import pathlib
import pickle
import tempfile
import time
import torch
import torch.distributed as dist
from pathlib import Path
from torch import nn


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


# %% asks_now_and_then: pass


def save_checkpoint(path, model, optimizer, epoch):
    work = None
    if dist.get_rank() == 0:
        write(everything(model, optimizer, epoch), path)
    work = dist.barrier(async_op=True)
    while not work.is_completed():
        time.sleep(0.05)
    work.wait()


# %% tells_each_rank_by_a_message: pass


def save_checkpoint(path, model, optimizer, epoch):
    word = torch.zeros(1)
    if dist.get_rank() == 0:
        write(everything(model, optimizer, epoch), path)
        for rank in range(1, dist.get_world_size()):
            dist.send(word, rank)
    else:
        dist.recv(word, 0)


# %% pathlib_all_the_way: pass


def save_checkpoint(path, model, optimizer, epoch):
    path = pathlib.Path(path)
    if dist.get_rank() == 0:
        unfinished = path.with_name(path.name + ".part")
        torch.save(everything(model, optimizer, epoch), unfinished)
        unfinished.replace(path)
    dist.barrier()


# %% in_a_folder_below: pass


def save_checkpoint(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as folder:
            unfinished = os.path.join(folder, "state.pt")
            torch.save(everything(model, optimizer, epoch), unfinished)
            os.replace(unfinished, path)
    dist.barrier()


# %% a_temporary_file_and_fsync: pass


def save_checkpoint(path, model, optimizer, epoch):
    dist.barrier()
    if dist.get_rank() == 0:
        folder = os.path.dirname(os.path.abspath(path))
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            torch.save(everything(model, optimizer, epoch), file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(file.name, path)
    dist.barrier()


# %% as_json: pass


def load_json(path, model, optimizer):
    state = json.loads(pathlib.Path(path).read_text())
    for name, value in model.state_dict().items():
        value.copy_(torch.tensor(state["model"][name], dtype=value.dtype))
    optimizer.load_state_dict(pickle.loads(bytes.fromhex(state["optimizer"])))
    return state["epoch"]


@with_loader(load_json)
def save_checkpoint(path, model, optimizer, epoch):
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


# %% whole_objects: pass


def load_whole_objects(path, model, optimizer):
    saved_model, saved_optimizer, epoch = torch.load(path, weights_only=False)
    model.load_state_dict(saved_model.state_dict())
    optimizer.load_state_dict(saved_optimizer.state_dict())
    return epoch


@with_loader(load_whole_objects)
def save_checkpoint(path, model, optimizer, epoch):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if dist.get_rank() == 0:
        write((model, optimizer, epoch), path)
    dist.barrier()


# %% a_barrier_that_names_who_is_missing: pass


def save_checkpoint(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(obj=everything(model, optimizer, epoch), f=os.fsencode(path).decode() + ".tmp")
        pathlib.Path(f"{path}.tmp").rename(path)
    dist.monitored_barrier()


# %% keeps_a_backup: pass


def save_checkpoint(path, model, optimizer, epoch):
    path = str(path)
    if dist.get_rank() == 0:
        torch.save(everything(model, optimizer, epoch), path + ".new")
        if os.path.exists(path):
            if os.path.exists(path + ".backup"):
                os.remove(path + ".backup")
            os.link(path, path + ".backup")
        os.replace(path + ".new", path)
    dist.barrier()


# %% five_bytes_pickle: pass

# style: unusual: serialises into memory first, then pickle of bytes; an all_reduce instead of a barrier


def _pack(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _unpack(data):
    return torch.load(io.BytesIO(data), map_location="cpu")


def save_checkpoint(path, model: nn.Module, optimizer, epoch: int) -> None:
    path = Path(path)
    done = torch.zeros(1, device=next(model.parameters()).device)
    if dist.get_rank() == 0:
        data = pickle.dumps([epoch, _pack(model.state_dict()), _pack(optimizer.state_dict())])
        new = path.with_name(f".{path.name}.{os.getpid()}")
        new.write_bytes(data)
        new.replace(path)
        done += 1
    dist.all_reduce(done)
    done.item()  # on a GPU: only this waits


def load_checkpoint(path, model: nn.Module, optimizer) -> int:
    epoch, weights, steps = pickle.loads(Path(path).read_bytes())
    model.load_state_dict(_unpack(weights))
    optimizer.load_state_dict(_unpack(steps))
    return epoch


# %% five_fsync_and_error_broadcast: pass

# style: careful: NamedTemporaryFile in the same folder, fsync, clean-up, and errors reach every rank


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


# %% five_tmp_replace_barrier: pass

# style: the classic: torch.save beside the target, os.replace, barrier


def save_checkpoint(path, model: nn.Module, optimizer, epoch: int) -> None:
    if dist.get_rank() == 0:
        temporary = f"{os.fspath(path)}.tmp"
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, temporary)
        os.replace(temporary, path)
    dist.barrier()


def load_checkpoint(path, model: nn.Module, optimizer) -> int:
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"])


# %% five_exclusive_tmp: pass

# mistake: opens the temporary file with "xb": what a killed job left behind makes every later save fail


def save_checkpoint(path, model, optimizer, epoch) -> None:
    if dist.get_rank() == 0:
        temporary = str(path) + ".tmp"
        with open(temporary, "xb") as file:
            torch.save([model.state_dict(), optimizer.state_dict(), epoch], file)
        os.replace(temporary, path)
    dist.barrier()


def load_checkpoint(path, model, optimizer) -> int:
    weights, steps, epoch = torch.load(path, map_location="cpu")
    model.load_state_dict(weights)
    optimizer.load_state_dict(steps)
    return epoch


# %% every_rank_writes: wrong save_checkpoint.every_rank_writes


def save_checkpoint(path, model, optimizer, epoch):
    torch.save(everything(model, optimizer, epoch), path)
    dist.barrier()


# %% unfinished_in_the_current_folder: wrong save_checkpoint.from_another_folder


def save_checkpoint(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(everything(model, optimizer, epoch), "unfinished.pt")
        os.replace("unfinished.pt", path)
    dist.barrier()


# %% no_barrier: wrong save_checkpoint.returned_too_early


def save_checkpoint(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        write(everything(model, optimizer, epoch), path)


# %% straight_into_the_file: wrong save_checkpoint.written_in_place


def save_checkpoint(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(everything(model, optimizer, epoch), path)
    dist.barrier()


# %% renames_before_the_file_is_closed: wrong save_checkpoint.old_file_destroyed


@with_loader(load_pickle)
def save_checkpoint(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        file = open(f"{path}.new", "wb")
        pickle.dump(everything(model, optimizer, epoch), file)
        os.replace(f"{path}.new", path)
        file.close()
    dist.barrier()


# %% removes_the_old_file_first: wrong save_checkpoint.gap_between_old_and_new


def save_checkpoint(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(everything(model, optimizer, epoch), f"{path}.new")
        if os.path.exists(path):
            os.remove(path)
        os.rename(f"{path}.new", path)
    dist.barrier()


# %% forgets_to_rename: wrong save_checkpoint.no_file


def save_checkpoint(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(everything(model, optimizer, epoch), f"{path}.tmp")
    dist.barrier()


# %% in_half_the_space: wrong rounded


def save_checkpoint(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        state = everything(model, optimizer, epoch)
        state["model"] = {
            n: t.float() if t.is_floating_point() else t for n, t in state["model"].items()
        }
        write(state, path)
    dist.barrier()


# %% remembers_it_in_memory: crash exception


def load_from_memory(path, model, optimizer):
    state = memory[str(path)]
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@with_loader(load_from_memory)
def save_checkpoint(path, model, optimizer, epoch):
    global memory
    memory = {str(path): everything(model, optimizer, epoch)}
    if dist.get_rank() == 0:
        write(everything(model, optimizer, epoch), path)
    dist.barrier()


# %% only_this_half: wrong save_checkpoint.load_missing


def not_written_yet(path, model, optimizer):
    raise NotImplementedError


@with_loader(not_written_yet)
def save_checkpoint(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        write(everything(model, optimizer, epoch), path)
    dist.barrier()
