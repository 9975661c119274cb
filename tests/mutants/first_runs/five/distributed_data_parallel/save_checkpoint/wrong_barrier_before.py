# mistake: the barrier comes before the write instead of after it
import os

import torch
import torch.distributed as dist


def save_checkpoint(path, model, optimizer, epoch) -> None:
    dist.barrier()
    if dist.get_rank() == 0:
        temporary = str(path) + ".tmp"
        torch.save([model.state_dict(), optimizer.state_dict(), epoch], temporary)
        os.replace(temporary, path)


def load_checkpoint(path, model, optimizer) -> int:
    weights, steps, epoch = torch.load(path, map_location="cpu")
    model.load_state_dict(weights)
    optimizer.load_state_dict(steps)
    return epoch
