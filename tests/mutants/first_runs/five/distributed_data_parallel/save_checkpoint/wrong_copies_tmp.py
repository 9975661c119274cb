# mistake: writes elsewhere but then copies over path, which is not atomic
import os
import shutil
import tempfile

import torch
import torch.distributed as dist


def save_checkpoint(path, model, optimizer, epoch) -> None:
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            temporary = os.path.join(folder, "checkpoint.pt")
            torch.save([model.state_dict(), optimizer.state_dict(), epoch], temporary)
            shutil.copyfile(temporary, path)
    dist.barrier()


def load_checkpoint(path, model, optimizer) -> int:
    weights, steps, epoch = torch.load(path, map_location="cpu")
    model.load_state_dict(weights)
    optimizer.load_state_dict(steps)
    return epoch
