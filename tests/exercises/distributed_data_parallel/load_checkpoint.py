"""``distributed_data_parallel.load_checkpoint``: training continues as if it had never stopped."""

import os

import torch
import torch.distributed as dist

from multigpu.checking.declaration import exercise

from .resumed_training import raised_by_drive, resumes

load_checkpoint = exercise(
    "distributed_data_parallel.load_checkpoint",
    expects="every rank continues from epoch {epoch} as if training had never stopped",
)
resumes(load_checkpoint)


raised_by_drive(
    load_checkpoint,
    "save_missing",
    expects="save_checkpoint writes the file that load_checkpoint reads",
    usually="the two are judged as a pair, because the format of the file is yours.",
    fix="Write both.",
)


# --- what answers are made of --------------------------------------------------------------------


def load(path, model, optimizer):
    """All that the reference's save_checkpoint writes."""
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


def with_saver(save):
    """The other half of an answer: it takes the place of save_checkpoint."""
    globals()["save_checkpoint"] = save
    return lambda load: load


def save_lists(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        tensors = [*model.parameters(), *model.buffers()]
        state = [[t.detach() for t in tensors], optimizer.state_dict(), torch.tensor(epoch)]
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)
    dist.barrier()


@load_checkpoint.right
def rank_zero_reads_and_sends(path, model, optimizer):
    sent = [torch.load(path) if dist.get_rank() == 0 else {}]
    dist.broadcast_object_list(sent, src=0)
    (state,) = sent
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@load_checkpoint.right
@with_saver(save_lists)
def from_lists(path, model, optimizer):
    tensors, state, epoch = torch.load(path, map_location="cpu")
    with torch.no_grad():
        for tensor, saved in zip([*model.parameters(), *model.buffers()], tensors):
            tensor.copy_(saved)
    optimizer.load_state_dict(state)
    return int(epoch)


@load_checkpoint.mistake(
    "model_not_loaded",
    "the model is as new: what was saved did not come into the model that was given.",
    fix="model.load_state_dict(...) writes the numbers into it.",
)
def does_not_load_the_model(path, model, optimizer):
    state = torch.load(path)
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@load_checkpoint.mistake(
    "optimizer_lost",
    "the model is back, but training continues as with a new optimizer.",
    fix="optimizer.load_state_dict(...) brings back momentum, step counts and learning rates, into"
    " the optimizer that was given.",
)
def forgets_the_optimizer(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    return state["epoch"]


@load_checkpoint.mistake(
    "other_ranks_not_loaded",
    "only rank 0 loads.",
    fix="Every rank reads the file, or rank 0 sends all that it has read.",
)
def only_rank_zero_loads(path, model, optimizer):
    epoch = torch.tensor(0)
    if dist.get_rank() == 0:
        epoch += load(path, model, optimizer)
    dist.broadcast(epoch, src=0)
    return epoch.item()


@load_checkpoint.mistake(
    "buffers_lost",
    "only parameters were loaded, and buffers are a part of the model too.",
    fix="state_dict() has both, and load_state_dict() loads both.",
)
def copies_parameters_only(path, model, optimizer):
    state = torch.load(path)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(state["model"][name])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@load_checkpoint.mistake(
    "learning_rate_lost",
    "the momentum is back, but the learning rate is the one that the optimizer was made with.",
    fix="It is in the param_groups of optimizer.state_dict(): load all of it.",
)
def keeps_its_own_learning_rate(path, model, optimizer):
    rates = [group["lr"] for group in optimizer.param_groups]
    epoch = load(path, model, optimizer)
    for group, rate in zip(optimizer.param_groups, rates):
        group["lr"] = rate
    return epoch


@load_checkpoint.mistake(
    "parameters_replaced",
    "the model has new parameter objects, and the optimizer still trains the old ones.",
    fix="Copy numbers into the parameters that are there, as load_state_dict does without assign.",
)
def puts_new_parameters_into_the_model(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"], assign=True)
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@load_checkpoint.mistake(
    "other_epoch",
    "the next epoch was returned.",
    fix="Return the number that was saved: the caller adds 1.",
)
def the_next_epoch(path, model, optimizer):
    return load(path, model, optimizer) + 1


@load_checkpoint.mistake(
    "epoch_not_an_int",
    "the epoch was saved as a tensor.",
    fix="Save the number itself, or return int(epoch).",
)
@with_saver(save_lists)
def returns_a_tensor(path, model, optimizer):
    tensors, state, epoch = torch.load(path)
    with torch.no_grad():
        for tensor, saved in zip([*model.parameters(), *model.buffers()], tensors):
            tensor.copy_(saved)
    optimizer.load_state_dict(state)
    return epoch


@load_checkpoint.mistake(
    "barrier_on_rank_0_only",
    "rank 0 waits in a barrier that no other rank reaches: it is inside an `if`.",
    fix="Every rank makes every call.",
    status="hang",
)
def a_barrier_for_rank_zero_only(path, model, optimizer):
    if dist.get_rank() == 0:
        dist.barrier()
    return load(path, model, optimizer)
