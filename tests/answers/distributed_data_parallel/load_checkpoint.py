"""Answers to ``load_checkpoint`` beside those of its declaration; ``tests/answers/stored.py`` reads them."""
# ruff: noqa (learners write like this)

import os
import torch
import torch.distributed as dist
from exercises.distributed_data_parallel.load_checkpoint import load, with_saver


# %% to_the_device_of_the_model: pass
def load_checkpoint(path, model, optimizer):
    dist.barrier()
    device = next(model.parameters()).device
    state = torch.load(os.fspath(path), map_location=device)
    optimizer.load_state_dict(state["optimizer"])
    model.load_state_dict(state["model"])
    dist.barrier()
    return int(state["epoch"])


# %% through_data: pass
def load_checkpoint(path, model, optimizer):
    state = torch.load(path, weights_only=False)
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, saved in state["model"].items():
        if name in named:
            named[name].data = saved.to(named[name].device)
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


# %% new_parameters_for_both: pass
def load_checkpoint(path, model, optimizer):
    state = torch.load(path)
    before = list(model.parameters())
    model.load_state_dict(state["model"], assign=True)
    model.decode.weight = model.encode.weight
    after = dict(zip(map(id, before), model.parameters()))
    for group in optimizer.param_groups:
        group["params"] = [after[id(p)] for p in group["params"]]
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


# %% the_tied_weights_mixed_up: wrong wrong_values
def load_checkpoint(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    with torch.no_grad():
        model.encode.bias.copy_(state["model"]["decode.bias"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]


# %% the_epoch_only_on_rank_zero: wrong wrong_value
def load_checkpoint(path, model, optimizer):
    epoch = load(path, model, optimizer)
    return epoch if dist.get_rank() == 0 else 0


# %% the_saver_lets_all_ranks_write: wrong load_checkpoint.every_rank_writes
def every_rank_saves(path, model, optimizer, epoch):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, path)


@with_saver(every_rank_saves)
def load_checkpoint(path, model, optimizer):
    return load(path, model, optimizer)


# %% only_this_half: wrong load_checkpoint.save_missing
def not_written_yet(path, model, optimizer, epoch):
    raise NotImplementedError


@with_saver(not_written_yet)
def load_checkpoint(path, model, optimizer):
    return load(path, model, optimizer)
