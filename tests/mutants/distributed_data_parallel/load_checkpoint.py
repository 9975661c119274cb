"""Answers to ``load_checkpoint``: how learners get it wrong, and ways to get it right.

Most of them read what the reference's ``save_checkpoint`` writes.
"""
# ruff: noqa (learners write like this)

import copy
import os

import torch
import torch.distributed as dist
from harness import right, wrong


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


def save_momentum_only(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        state = copy.deepcopy(optimizer.state_dict()["state"])
        torch.save((model.state_dict(), state, epoch), f"{path}.new")
        os.replace(f"{path}.new", path)
    dist.barrier()


def every_rank_saves(path, model, optimizer, epoch):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, path)


def not_written_yet(path, model, optimizer, epoch):
    raise NotImplementedError


@wrong("load_checkpoint.model_not_loaded")
def does_not_load_the_model(path, model, optimizer):
    state = torch.load(path)
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@wrong("load_checkpoint.model_not_loaded")
def loads_into_a_copy(path, model, optimizer):
    state = torch.load(path)
    model = copy.deepcopy(model)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@wrong("load_checkpoint.other_ranks_not_loaded")
def only_rank_zero_loads(path, model, optimizer):
    epoch = torch.tensor(0)
    if dist.get_rank() == 0:
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        epoch += state["epoch"]
    dist.broadcast(epoch, src=0)
    return epoch.item()


@wrong("load_checkpoint.buffers_lost")
def rank_zero_sends_parameters_only(path, model, optimizer):
    state = torch.load(path)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(state["model"][name])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@wrong("load_checkpoint.frozen_lost")
def trained_parameters_and_buffers(path, model, optimizer):
    state = torch.load(path)
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if tensor.requires_grad or not isinstance(tensor, torch.nn.Parameter):
                tensor.copy_(state["model"][name])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@wrong("load_checkpoint.optimizer_lost")
def forgets_the_optimizer(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    return state["epoch"]


@wrong("load_checkpoint.rounded")
def through_half_the_digits(path, model, optimizer):
    state = torch.load(path)
    weights = state["model"].items()
    model.load_state_dict({n: t.float() if t.is_floating_point() else t for n, t in weights})
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@wrong("load_checkpoint.other_numbers")
def the_tied_weights_mixed_up(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    with torch.no_grad():
        model.encode.bias.copy_(state["model"]["decode.bias"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@wrong("load_checkpoint.optimizer_lost")
def loads_into_a_new_optimizer(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.state.update(state["optimizer"]["state"])
    return state["epoch"]


@wrong("load_checkpoint.learning_rate_lost")
@with_saver(save_momentum_only)
def keeps_its_own_learning_rate(path, model, optimizer):
    weights, state, epoch = torch.load(path)
    model.load_state_dict(weights)
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return epoch


@wrong("load_checkpoint.momentum_lost")
def keeps_the_learning_rate_only(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    for group, saved in zip(optimizer.param_groups, state["optimizer"]["param_groups"]):
        group["lr"] = saved["lr"]
    return state["epoch"]


@wrong("load_checkpoint.parameters_replaced")
def puts_new_parameters_into_the_model(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"], assign=True)
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@wrong("load_checkpoint.returned_nothing")
def returns_nothing(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


@wrong("load_checkpoint.epoch_not_an_int")
@with_saver(save_lists)
def returns_a_tensor(path, model, optimizer):
    tensors, state, epoch = torch.load(path)
    with torch.no_grad():
        for tensor, saved in zip([*model.parameters(), *model.buffers()], tensors):
            tensor.copy_(saved)
    optimizer.load_state_dict(state)
    return epoch


@wrong("load_checkpoint.other_epoch")
def the_next_epoch(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] + 1


@wrong("load_checkpoint.other_epoch")
def the_epoch_only_on_rank_zero(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] if dist.get_rank() == 0 else 0


@wrong("deadlock", status="hang")
def a_barrier_for_rank_zero_only(path, model, optimizer):
    state = torch.load(path)
    if dist.get_rank() == 0:
        dist.barrier()
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@wrong("load_checkpoint.goes_on_differently")
def forgets_half_of_adam(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    for kept in state["optimizer"]["state"].values():
        for name, value in kept.items():
            if name in ("exp_avg_sq", "momentum_buffer"):
                value.mul_(0.5)
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@wrong("load_checkpoint.every_rank_writes")
@with_saver(every_rank_saves)
def the_saver_lets_all_ranks_write(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@wrong("load_checkpoint.save_missing")
@with_saver(not_written_yet)
def only_this_half(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@right
def to_the_device_of_the_model(path, model, optimizer):
    dist.barrier()
    device = next(model.parameters()).device
    state = torch.load(os.fspath(path), map_location=device)
    optimizer.load_state_dict(state["optimizer"])
    model.load_state_dict(state["model"])
    dist.barrier()
    return int(state["epoch"])


@right
def rank_zero_reads_and_sends(path, model, optimizer):
    state = [torch.load(path) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(state, src=0)
    model.load_state_dict(state[0]["model"])
    optimizer.load_state_dict(state[0]["optimizer"])
    return state[0]["epoch"]


@right
@with_saver(save_lists)
def from_lists(path, model, optimizer):
    with open(path, "rb") as file:
        tensors, state, epoch = torch.load(file, map_location="cpu")
    with torch.no_grad():
        for tensor, saved in zip([*model.parameters(), *model.buffers()], tensors):
            tensor.copy_(saved)
    optimizer.load_state_dict(state)
    return int(epoch)


@right
def through_data(path, model, optimizer):
    state = torch.load(path, weights_only=False)
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, saved in state["model"].items():
        if name in named:
            named[name].data = saved.to(named[name].device)
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@right
def new_parameters_for_both(path, model, optimizer):
    state = torch.load(path)
    before = list(model.parameters())
    model.load_state_dict(state["model"], assign=True)
    model.decode.weight = model.encode.weight
    after = dict(zip(map(id, before), model.parameters()))
    for group in optimizer.param_groups:
        group["params"] = [after[id(p)] for p in group["params"]]
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]
