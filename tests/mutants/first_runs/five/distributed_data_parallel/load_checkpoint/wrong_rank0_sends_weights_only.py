# mistake: rank 0 loads and broadcasts the parameters, but neither buffers nor the optimizer's state
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
    epoch = torch.zeros(1, dtype=torch.int64)
    if dist.get_rank() == 0:
        weights, steps, saved = torch.load(path, map_location="cpu")
        model.load_state_dict(weights)
        optimizer.load_state_dict(steps)
        epoch[0] = saved
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    dist.broadcast(epoch, src=0)
    return epoch.item()
