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


def every_rank_saves(path, model, optimizer, epoch):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, path)


def not_written_yet(path, model, optimizer, epoch):
    raise NotImplementedError


@wrong("load_checkpoint.model_not_loaded")
def loads_into_a_copy(path, model, optimizer):
    state = torch.load(path)
    model = copy.deepcopy(model)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@wrong("rounded")
def through_half_the_digits(path, model, optimizer):
    state = torch.load(path)
    weights = state["model"].items()
    model.load_state_dict({n: t.float() if t.is_floating_point() else t for n, t in weights})
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


@wrong("wrong_values")
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


@wrong("returned_nothing")
def returns_nothing(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


@wrong("wrong_value")
def the_epoch_only_on_rank_zero(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] if dist.get_rank() == 0 else 0


@wrong("wrong_values")
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
