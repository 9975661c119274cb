# mistake: path + ".tmp" fails for a pathlib.Path
import os

import torch
import torch.distributed as dist


def save_checkpoint(path, model, optimizer, epoch) -> None:
    if dist.get_rank() == 0:
        torch.save([model.state_dict(), optimizer.state_dict(), epoch], path + ".tmp")
        os.replace(path + ".tmp", path)
    dist.barrier()


def load_checkpoint(path, model, optimizer) -> int:
    weights, steps, epoch = torch.load(path, map_location="cpu")
    model.load_state_dict(weights)
    optimizer.load_state_dict(steps)
    return epoch
