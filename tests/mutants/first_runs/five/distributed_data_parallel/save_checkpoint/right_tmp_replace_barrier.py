# style: the classic: torch.save beside the target, os.replace, barrier
import os

import torch
import torch.distributed as dist
from torch import nn


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
