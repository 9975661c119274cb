# mistake: the barrier comes after the temporary file but before the rename
import os

import torch
import torch.distributed as dist


def save_checkpoint(path, model, optimizer, epoch) -> None:
    temporary = str(path) + ".tmp"
    if dist.get_rank() == 0:
        torch.save([model.state_dict(), optimizer.state_dict(), epoch], temporary)
    dist.barrier()
    if dist.get_rank() == 0:
        os.replace(temporary, path)


def load_checkpoint(path, model, optimizer) -> int:
    weights, steps, epoch = torch.load(path, map_location="cpu")
    model.load_state_dict(weights)
    optimizer.load_state_dict(steps)
    return epoch
