# mistake: only rank 0 loads, the others get the epoch and keep their own weights
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
    box = [None]
    if dist.get_rank() == 0:
        weights, steps, box[0] = torch.load(path, map_location="cpu")
        model.load_state_dict(weights)
        optimizer.load_state_dict(steps)
    dist.broadcast_object_list(box, src=0)
    return box[0]
