# style: unusual: copies into parameters and buffers by hand, and the ranks take turns
import os

import torch
import torch.distributed as dist


def save_checkpoint(path, model, optimizer, epoch) -> None:
    if dist.get_rank() == 0:
        temporary = f"{path}.tmp"
        torch.save({"m": model.state_dict(), "o": optimizer.state_dict(), "e": torch.tensor(epoch)}, temporary)
        os.replace(temporary, path)
    dist.barrier()


@torch.no_grad()
def load_checkpoint(path, model, optimizer) -> int:
    for turn in range(dist.get_world_size()):
        if turn == dist.get_rank():
            state = torch.load(os.fspath(path), map_location=lambda storage, _: storage)
            for name, tensor in model.state_dict().items():  # these share memory with the model
                tensor.copy_(state["m"][name])
            optimizer.load_state_dict(state["o"])
        dist.barrier()
    return state["e"].item()
