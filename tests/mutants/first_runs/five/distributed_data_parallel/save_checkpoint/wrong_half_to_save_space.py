# mistake: stores the weights as float16 "to save space": not the same to the last bit
import os

import torch
import torch.distributed as dist


def save_checkpoint(path, model, optimizer, epoch) -> None:
    if dist.get_rank() == 0:
        temporary = str(path) + ".tmp"
        weights = {n: t.half() if t.is_floating_point() else t for n, t in model.state_dict().items()}
        torch.save([weights, optimizer.state_dict(), epoch], temporary)
        os.replace(temporary, path)
    dist.barrier()


def load_checkpoint(path, model, optimizer) -> int:
    weights, steps, epoch = torch.load(path, map_location="cpu")
    model.load_state_dict(weights)
    optimizer.load_state_dict(steps)
    return epoch
