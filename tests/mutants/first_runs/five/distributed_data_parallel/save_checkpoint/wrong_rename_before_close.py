# mistake: renames inside the with block, while part of the data is still in the buffer of the open file
import os
import pickle

import torch
import torch.distributed as dist


def save_checkpoint(path, model, optimizer, epoch) -> None:
    if dist.get_rank() == 0:
        temporary = str(path) + ".tmp"
        with open(temporary, "wb", buffering=2**20) as file:
            pickle.dump([model.state_dict(), optimizer.state_dict(), epoch], file)
            os.replace(temporary, path)
    dist.barrier()


def load_checkpoint(path, model, optimizer) -> int:
    with open(path, "rb") as file:
        weights, steps, epoch = pickle.load(file)
    model.load_state_dict(weights)
    optimizer.load_state_dict(steps)
    return epoch
