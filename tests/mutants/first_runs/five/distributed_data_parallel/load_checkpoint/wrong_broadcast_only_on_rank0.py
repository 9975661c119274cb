# mistake: the broadcast stands in the branch of rank 0; the others wait in another collective (hangs)
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
        dist.broadcast_object_list(state, src=0)
    else:
        dist.barrier()
        dist.broadcast_object_list(state, src=0)
    weights, steps, epoch = state[0]
    model.load_state_dict(weights)
    optimizer.load_state_dict(steps)
    return epoch
