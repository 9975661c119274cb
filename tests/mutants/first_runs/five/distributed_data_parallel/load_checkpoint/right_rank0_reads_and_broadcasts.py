# style: only rank 0 touches the disk and sends the bytes of the file to the others as an object
import io
import os
from pathlib import Path

import torch
import torch.distributed as dist


def save_checkpoint(path, model, optimizer, epoch) -> None:
    if dist.get_rank() == 0:
        temporary = f"{path}.tmp"
        torch.save((model.state_dict(), optimizer.state_dict(), epoch), temporary)
        os.replace(temporary, path)
    dist.barrier()


def load_checkpoint(path, model, optimizer) -> int:
    data = [Path(path).read_bytes() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(data, src=0)
    weights, steps, epoch = torch.load(io.BytesIO(data[0]), map_location="cpu")
    model.load_state_dict(weights)
    optimizer.load_state_dict(steps)
    return epoch
