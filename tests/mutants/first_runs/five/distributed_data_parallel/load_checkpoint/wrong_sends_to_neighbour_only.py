# mistake: rank 0 sends what it read to rank 1 only: right on 2 ranks, hangs on 3
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
    state = [None]
    if dist.get_rank() == 0:
        state = [torch.load(path, map_location="cpu")]
        if dist.get_world_size() > 1:
            dist.send_object_list(state, dst=1)
    else:
        dist.recv_object_list(state, src=0)
    weights, steps, epoch = state[0]
    model.load_state_dict(weights)
    optimizer.load_state_dict(steps)
    return epoch
