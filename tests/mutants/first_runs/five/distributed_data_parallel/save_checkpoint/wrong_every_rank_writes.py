# mistake: every rank writes and renames its own temporary file
import os

import torch
import torch.distributed as dist


def save_checkpoint(path, model, optimizer, epoch) -> None:
    temporary = f"{path}.{dist.get_rank()}.tmp"
    torch.save([model.state_dict(), optimizer.state_dict(), epoch], temporary)
    os.replace(temporary, path)
    dist.barrier()


def load_checkpoint(path, model, optimizer) -> int:
    weights, steps, epoch = torch.load(path, map_location="cpu")
    model.load_state_dict(weights)
    optimizer.load_state_dict(steps)
    return epoch
