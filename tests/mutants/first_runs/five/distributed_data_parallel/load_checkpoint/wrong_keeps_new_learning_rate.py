# mistake: restores momentum, but keeps the param_groups (learning rates) of the new optimizer
import os

import torch
import torch.distributed as dist


def save_checkpoint(path, model, optimizer, epoch) -> None:
    if dist.get_rank() == 0:
        temporary = f"{path}.tmp"
        torch.save((model.state_dict(), optimizer.state_dict(), epoch), temporary)
        os.replace(temporary, path)
    dist.barrier()


def load_checkpoint(path, model, optimizer) -> int:
    weights, steps, epoch = torch.load(path, map_location="cpu")
    model.load_state_dict(weights)
    steps["param_groups"] = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict(steps)
    return epoch
