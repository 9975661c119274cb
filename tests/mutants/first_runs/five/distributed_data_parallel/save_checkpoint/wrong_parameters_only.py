# mistake: saves the parameters but no buffers (running means of BatchNorm are lost)
import os

import torch
import torch.distributed as dist


def save_checkpoint(path, model, optimizer, epoch) -> None:
    if dist.get_rank() == 0:
        temporary = str(path) + ".tmp"
        weights = {name: p.detach() for name, p in model.named_parameters()}
        torch.save([weights, optimizer.state_dict(), epoch], temporary)
        os.replace(temporary, path)
    dist.barrier()


def load_checkpoint(path, model, optimizer) -> int:
    weights, steps, epoch = torch.load(path, map_location="cpu")
    model.load_state_dict(weights, strict=False)
    optimizer.load_state_dict(steps)
    return epoch
