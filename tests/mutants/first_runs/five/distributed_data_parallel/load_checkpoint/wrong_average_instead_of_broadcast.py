# mistake: rank 0 loads, the others zero theirs, and an all-reduce adds them up; forgets momentum on the others
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
    number = torch.zeros((), dtype=torch.int64)
    if dist.get_rank() == 0:
        weights, steps, epoch = torch.load(path, map_location="cpu")
        model.load_state_dict(weights)
        optimizer.load_state_dict(steps)
        number.fill_(epoch)
    for tensor in model.state_dict().values():
        if dist.get_rank() != 0:
            tensor.zero_()
        dist.all_reduce(tensor)
    dist.all_reduce(number)
    return int(number)
