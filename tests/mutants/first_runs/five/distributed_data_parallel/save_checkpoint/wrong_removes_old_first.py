# mistake: removes the old file before the rename: for a moment there is none
import os

import torch
import torch.distributed as dist


def save_checkpoint(path, model, optimizer, epoch) -> None:
    if dist.get_rank() == 0:
        temporary = str(path) + ".tmp"
        torch.save([model.state_dict(), optimizer.state_dict(), epoch], temporary)
        if os.path.exists(path):
            os.remove(path)
        os.rename(temporary, path)
    dist.barrier()


def load_checkpoint(path, model, optimizer) -> int:
    weights, steps, epoch = torch.load(path, map_location="cpu")
    model.load_state_dict(weights)
    optimizer.load_state_dict(steps)
    return epoch
