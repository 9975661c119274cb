# mistake: leaves frozen parameters out
import os

import torch
import torch.distributed as dist


def save_checkpoint(path, model, optimizer, epoch) -> None:
    if dist.get_rank() == 0:
        temporary = str(path) + ".tmp"
        frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
        weights = {name: t for name, t in model.state_dict().items() if name not in frozen}
        torch.save([weights, optimizer.state_dict(), epoch], temporary)
        os.replace(temporary, path)
    dist.barrier()


def load_checkpoint(path, model, optimizer) -> int:
    weights, steps, epoch = torch.load(path, map_location="cpu")
    model.load_state_dict(weights, strict=False)
    optimizer.load_state_dict(steps)
    return epoch
