# mistake: opens the temporary file with "xb": what a killed job left behind makes every later save fail
import os

import torch
import torch.distributed as dist


def save_checkpoint(path, model, optimizer, epoch) -> None:
    if dist.get_rank() == 0:
        temporary = str(path) + ".tmp"
        with open(temporary, "xb") as file:
            torch.save([model.state_dict(), optimizer.state_dict(), epoch], file)
        os.replace(temporary, path)
    dist.barrier()


def load_checkpoint(path, model, optimizer) -> int:
    weights, steps, epoch = torch.load(path, map_location="cpu")
    model.load_state_dict(weights)
    optimizer.load_state_dict(steps)
    return epoch
