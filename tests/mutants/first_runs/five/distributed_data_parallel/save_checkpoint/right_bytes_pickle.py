# style: unusual: serialises into memory first, then pickle of bytes; an all_reduce instead of a barrier
import io
import os
import pickle
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def _pack(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _unpack(data):
    return torch.load(io.BytesIO(data), map_location="cpu")


def save_checkpoint(path, model: nn.Module, optimizer, epoch: int) -> None:
    path = Path(path)
    done = torch.zeros(1, device=next(model.parameters()).device)
    if dist.get_rank() == 0:
        data = pickle.dumps([epoch, _pack(model.state_dict()), _pack(optimizer.state_dict())])
        new = path.with_name(f".{path.name}.{os.getpid()}")
        new.write_bytes(data)
        new.replace(path)
        done += 1
    dist.all_reduce(done)
    done.item()  # on a GPU: only this waits


def load_checkpoint(path, model: nn.Module, optimizer) -> int:
    epoch, weights, steps = pickle.loads(Path(path).read_bytes())
    model.load_state_dict(_unpack(weights))
    optimizer.load_state_dict(_unpack(steps))
    return epoch
