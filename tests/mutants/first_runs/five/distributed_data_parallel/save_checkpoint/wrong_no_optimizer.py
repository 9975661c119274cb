# mistake: forgets the optimizer
import os

import torch
import torch.distributed as dist


def save_checkpoint(path, model, optimizer, epoch) -> None:
    if dist.get_rank() == 0:
        temporary = str(path) + ".tmp"
        torch.save([model.state_dict(), epoch], temporary)
        os.replace(temporary, path)
    dist.barrier()


def load_checkpoint(path, model, optimizer) -> int:
    weights, epoch = torch.load(path, map_location="cpu")
    model.load_state_dict(weights)
    return epoch
